package container

import specs "github.com/opencontainers/runtime-spec/specs-go"

// Command describes one command in a box.
type Command struct {
	Args     []string
	Env      []string
	Cwd      string
	UID, GID int // in the box
	Limits   Limits
	Terminal *specs.Box // the size of its terminal, or nil
}

// Process returns the runtime's configuration of the command. Only root gets capabilities.
func (c Command) Process() *specs.Process {
	caps := &specs.LinuxCapabilities{Bounding: capabilities}
	if c.UID == 0 {
		caps = boundTo(capabilities)
	}
	return &specs.Process{
		Terminal: c.Terminal != nil, ConsoleSize: c.Terminal,
		Args: c.Args, Env: c.Env, Cwd: c.Cwd,
		User:            specs.User{UID: uint32(c.UID), GID: uint32(c.GID)},
		Capabilities:    caps,
		NoNewPrivileges: true,
		OOMScoreAdj:     new(oomScore),
		Rlimits:         specRlimits(c.Limits),
	}
}
