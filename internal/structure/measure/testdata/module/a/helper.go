package a

func helper() {
	current.Load().Do()
	name := 0
	_ = name
}
