package launcher

import specs "github.com/opencontainers/runtime-spec/specs-go"

// command is what the configuration of one command in a box depends on.
type command struct {
	args     []string
	env      []string
	cwd      string
	uid, gid int // in the box
	limits   limits
}

// process is the runtime's configuration of the command. Only root gets capabilities.
func (c command) process() *specs.Process {
	caps := &specs.LinuxCapabilities{Bounding: capabilities}
	if c.uid == 0 {
		caps = boundTo(capabilities)
	}
	return &specs.Process{
		Args: c.args, Env: c.env, Cwd: c.cwd,
		User:            specs.User{UID: uint32(c.uid), GID: uint32(c.gid)},
		Capabilities:    caps,
		NoNewPrivileges: true,
		OOMScoreAdj:     new(oomScore),
		Rlimits:         specRlimits(c.limits),
	}
}
