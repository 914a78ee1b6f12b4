package a

func make1() *T { return nil }
