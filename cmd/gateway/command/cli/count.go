package cli

import "strconv"

// Count writes a number with the word for what is counted: one for 1, else many.
func Count[N ~int | ~int64 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(int64(n), 10) + " " + many
}
