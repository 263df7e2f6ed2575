"""The experiments of the OSMD paper: a test bed for appendix F, one for appendix G."""
