package capture

// Cost returns how many bytes a text takes in JSON, about.
func Cost(text string) int {
	cost := 0
	for i := range len(text) {
		cost += costOf(text[i])
	}
	return cost
}

// fitting returns how many of the bytes take at most room in JSON, and how much they take.
func fitting(b []byte, room int) (n, cost int) {
	for _, c := range b {
		each := costOf(c)
		if cost+each > room {
			break
		}
		n, cost = n+1, cost+each
	}
	return n, cost
}

// costOf returns how many bytes a byte takes in JSON.
func costOf(c byte) int {
	switch {
	case c == '\n', c == '\t', c == '\r', c == '"', c == '\\':
		return len(`\n`)
	case c < ' ', c == '<', c == '>', c == '&':
		return len(`\u0000`)
	}
	return 1
}
