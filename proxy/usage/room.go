package usage

// Room reports whether a user that has mine of a resource may have one more. open of at most total are in use, by sharers
// users. While more than a quarter is free, everyone gets more; the last quarter is reserved for users with few, so that a
// few heavy users cannot starve the rest.
func Room(mine, open, total, sharers int) bool {
	switch {
	case total <= 0: // no limit
		return true
	case open >= total:
		return false
	case open < total-total/4:
		return true
	}
	return mine < max(1, total/4/(sharers+1))
}
