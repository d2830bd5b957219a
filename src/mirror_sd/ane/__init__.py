"""The draft as a Core ML program for the Neural Engine, and the means to prove it without one."""
