"""Which tokens stay: the policies, and how many they may keep."""
