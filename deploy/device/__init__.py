"""Devices that join a federation and stay in it: keys, invitations, a supervised SuperNode."""
