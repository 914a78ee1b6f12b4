package testdata

func unread() {}
