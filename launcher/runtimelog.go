package launcher

import (
	"errors"
	"os"
	"strings"
)

// runtimeError replaces "exit status 1" by what the runtime wrote to its log: the last line that is an error.
func runtimeError(logFile string, err error) error {
	data, rerr := os.ReadFile(logFile)
	if rerr != nil {
		return err
	}
	last := ""
	for line := range strings.Lines(string(data)) {
		if _, msg, ok := strings.Cut(line, `level=error msg=`); ok {
			last = strings.TrimSpace(msg)
		}
	}
	if last == "" {
		return err
	}
	return errors.New(unquoteLog(last))
}

// unquoteLog undoes the quoting of a logfmt value.
func unquoteLog(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\n`, " ").Replace(s[1 : len(s)-1])
}
