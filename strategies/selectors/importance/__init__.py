"""Importance sampling: its base classes, and four baselines of the OSMD paper.

MABS (Salehi, Celis, Thiran 2017), VRB (Borsos, Krause, Levy 2018), Avare (El Hanchi, Stephens 2020), and
sampling by Lipschitz constants (Zhao, Zhang 2015; Needell, Srebro, Ward 2016).
"""
