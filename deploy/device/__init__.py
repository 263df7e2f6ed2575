"""Devices that join a federation: keys, invitations and a supervised SuperNode."""
