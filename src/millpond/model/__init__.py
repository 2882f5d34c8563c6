"""What a user registers, as frozen values that can be compared, hashed and shared."""
