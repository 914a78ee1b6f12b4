package lab

import "strings"

// SearchLine returns a shell line that searches the environment, all of /proc and every file for the keys. One letter
// of each pattern is in brackets so that the search does not find itself in the process list.
func SearchLine(keys ...string) string {
	for i, key := range keys {
		keys[i] = key[:len(key)-1] + "[" + key[len(key)-1:] + "]"
	}
	pattern := strings.Join(keys, `\|`)
	return "env | grep -c '" + pattern + "'; " +
		"cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '" + pattern + "'; " +
		"grep -rl '" + pattern + "' / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | wc -l"
}
