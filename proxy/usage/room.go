package usage

// Room reports whether one more of something may be given to somebody who has mine of it, when all together have open,
// of total at most, and among sharers of whom each has some. While a quarter is left nobody is asked how much is theirs;
// the last quarter is for those who have little, so that a few who take all they may leave room for the others.
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
