"""How tokens come out: draft, verify, accept, commit."""
