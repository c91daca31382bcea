"""The gateway: who is asking, what may be asked, and the signed claim that says so."""
