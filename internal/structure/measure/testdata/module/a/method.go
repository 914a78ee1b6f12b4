package a

func (t *T) Do() {
	helper()
}
