"""What draws, temperatures and modes are worth: our files beside other methods, at equal bytes and passes."""
