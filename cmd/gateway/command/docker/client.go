// Package docker runs and attaches Docker containers through the docker command: it creates containers that wait for
// their network, connects running ones, and installs the gateway's CA.
package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// container is the output of `docker inspect`.
type container struct {
	ID    string `json:"Id"`
	Name  string
	State struct {
		Status    string
		Pid       int
		StartedAt string
	}
	Config struct {
		Entrypoint, Cmd []string
	}
	HostConfig struct {
		NetworkMode, PidMode, IpcMode, UTSMode, UsernsMode, Runtime string
		Privileged                                                  bool
		CapAdd, DeviceCgroupRules, SecurityOpt                      []string
		MaskedPaths                                                 []string // non-nil but empty: the kernel's paths are not masked
		Devices                                                     []struct{ PathOnHost string }
		DeviceRequests                                              []struct {
			Driver    string
			DeviceIDs []string
		}
	}
	NetworkSettings struct {
		Networks map[string]json.RawMessage
	}
	Mounts         []containerMount
	ResolvConfPath string
}

// containerMount is a volume of a container. Source is its directory on the host.
type containerMount struct {
	Type, Name, Source, Destination, Propagation string
	RW                                           bool
}

// image is the output of `docker image inspect`.
type image struct {
	Config struct {
		Entrypoint, Cmd []string
	}
}

// output runs a docker command and returns its output.
func output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("there is no command docker on this host")
	}
	if err != nil {
		return nil, fmt.Errorf("docker %s: %s", args[0], strings.TrimSpace(errout.String()))
	}
	return out.Bytes(), nil
}

// inspect inspects one object; kind is "container" or "image".
func inspect[T any](ctx context.Context, kind, name string) (T, error) {
	var list []T
	data, err := output(ctx, kind, "inspect", "--", name)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("docker does not know one %s %q", kind, name)
	}
	if err != nil {
		return *new(T), err
	}
	return list[0], nil
}

// inspectImage inspects an image, after pulling it if it is missing.
func inspectImage(ctx context.Context, name string) (image, error) {
	found, err := inspect[image](ctx, "image", name)
	if err == nil {
		return found, nil
	}
	pull := exec.CommandContext(ctx, "docker", "pull", "--", name)
	pull.Stdout, pull.Stderr = os.Stderr, os.Stderr
	if err := pull.Run(); err != nil {
		return image{}, fmt.Errorf("the image %s cannot be pulled", name)
	}
	return inspect[image](ctx, "image", name)
}
