package a

// Do has a comment, which does not count.
func (T) Do() {
	short()

	short()
}

func short() {}
