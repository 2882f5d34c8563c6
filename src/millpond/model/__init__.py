"""What a user asks for: frozen values that can be compared, hashed and shared."""
