package launcher

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"

	"boxgate/launcher/cgroup"
	"boxgate/policy"
)

// cgroup is the box's own control group. It has no parents to be cleaned up and names the state directory as well as the
// box, so that launchers on one host do not meet.
func (l *Launcher) cgroup(id policy.BoxID) cgroup.Group {
	return cgroup.Group("/boxgate-" + l.tag + "-" + string(id))
}

// runtimeCommand is a call of the runtime that writes what goes wrong to a file of ours.
func (l *Launcher) runtimeCommand(ctx context.Context, logFile string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.runc.Command, append([]string{"--root", l.runc.Root, "--log", logFile}, args...)...)
	cmd.Dir = l.runc.WorkDir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // the readiness of a service is not the runtime's to report
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=")
	})
	return cmd
}

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
