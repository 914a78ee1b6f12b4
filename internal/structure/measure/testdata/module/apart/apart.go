package apart

func apart() {}
