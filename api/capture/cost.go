package capture

// Cost returns the approximate number of bytes of a text in JSON.
func Cost(text string) int {
	cost := 0
	for i := range len(text) {
		cost += costOf(text[i])
	}
	return cost
}

// fitting returns how many of the bytes fit into room bytes of JSON, and how many bytes of JSON they take.
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

// costOf returns the number of bytes that a byte takes in JSON.
func costOf(c byte) int {
	switch {
	case c == '\n', c == '\t', c == '\r', c == '"', c == '\\':
		return len(`\n`)
	case c < ' ', c == '<', c == '>', c == '&':
		return len(`\u0000`)
	}
	return 1
}
