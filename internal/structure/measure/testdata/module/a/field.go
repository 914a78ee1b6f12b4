package a

func field() int { return make1().field }
