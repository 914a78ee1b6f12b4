package a

func test() { field() }
