package spec

import (
	"path"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
)

// Command checks a program and its arguments.
func Command(p *problem.List, at string, command []string) {
	if len(command) == 0 || command[0] == "" {
		p.Add(at, "must name a program, such as [\"ls\", \"-l\"]")
	}
	sum := 0
	for i, arg := range command {
		if strings.ContainsRune(arg, 0) {
			p.Add(at+"/"+strconv.Itoa(i), "must not contain NUL")
		}
		if len(arg) > api.MaxArgument {
			p.Add(at+"/"+strconv.Itoa(i), "has %d bytes; the limit is %d, above which the kernel does not start it", len(arg), api.MaxArgument)
		}
		sum += len(arg) + api.ArgumentCost
	}
	if sum > api.MaxArguments {
		p.Add(at, "needs %d bytes; the limit is %d, above which the kernel does not start it", sum, api.MaxArguments)
	}
}

// Folder returns a working directory as an absolute path. One that is not absolute is below [api.Workspace].
func Folder(p *problem.List, at, folder string) string {
	if strings.ContainsRune(folder, 0) || len(folder) > 4095 {
		p.Add(at, "is not a path")
	}
	if dir := path.Clean(folder); path.IsAbs(dir) {
		return dir
	}
	return path.Join(api.Workspace, folder)
}
