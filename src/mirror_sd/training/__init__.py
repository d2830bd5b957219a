"""Training a draft for a target."""
