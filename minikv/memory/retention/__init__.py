"""What a call left behind on the device, and the variables that hold it."""
