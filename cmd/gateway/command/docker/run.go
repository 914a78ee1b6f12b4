package docker

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/launcher"
)

// Gateway is the running gateway.
type Gateway struct {
	Client   *api.Client
	Resolver netip.Addr     // the gateway's DNS server
	Roots    []byte         // additional roots for the container, in PEM
	Sockets  []string       // the gateway's control sockets
	Body     map[string]any // of the request to attach: policy and header rules
}

// Run creates a container and attaches it to the gateway before its command runs. It returns the exit status of the
// command, or the ID of a container that runs in the background.
func (g Gateway) Run(ctx context.Context, l Line) (status int, id string, err error) {
	token := rand.Text()
	c, err := g.create(ctx, l, token)
	if err != nil {
		return 0, "", err
	}
	remove := func() { _, _ = output(context.WithoutCancel(ctx), "rm", "--force", "--volumes", c.ID) }
	if l.Detach {
		if _, err := output(ctx, "start", c.ID); err != nil {
			remove()
			return 0, "", err
		}
		if _, err := g.connect(ctx, c.ID, token); err != nil {
			remove()
			return 0, "", err
		}
		return 0, c.ID, nil
	}
	args := []string{"start", "--attach"}
	if l.Interactive {
		args = append(args, "--interactive")
	}
	cmd := exec.Command("docker", append(args, c.ID)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		remove()
		return 0, "", err
	}
	box, err := g.connect(ctx, c.ID, token)
	if err != nil {
		remove()
		_ = cmd.Process.Kill() // it may be waiting for the container that was removed
		_ = cmd.Wait()
		return 0, "", err
	}
	_ = cmd.Wait()
	if l.Remove {
		_ = g.Client.Do(context.WithoutCancel(ctx), "POST", api.BoxPath(box, "detach"), nil, nil) // the container is gone, whatever the answer
	}
	return cmd.ProcessState.ExitCode(), "", nil
}

// create creates the container without starting it. Once started, it waits for a file with the token in its name. create
// refuses a container that the gateway could not confine.
func (g Gateway) create(ctx context.Context, l Line, token string) (container, error) {
	found, err := inspectImage(ctx, l.Image)
	if err != nil {
		return container{}, err
	}
	command := slices.Concat(found.Config.Entrypoint, l.Command)
	switch {
	case l.Entrypoint != nil && *l.Entrypoint == "":
		command = l.Command
	case l.Entrypoint != nil:
		command = append([]string{*l.Entrypoint}, l.Command...)
	case len(l.Command) == 0:
		command = append(command, found.Config.Cmd...)
	}
	if len(command) == 0 {
		return container{}, fmt.Errorf("the image %s has no command: give one", l.Image)
	}
	self, err := executable()
	if err != nil {
		return container{}, err
	}
	args := []string{"create", "--network", "none", "--mount", "type=bind,source=" + self + ",target=" + holdProgram + ",readonly"}
	for _, name := range launcher.TrustVariables() {
		args = append(args, "--env", name+"="+launcher.BundlePath)
	}
	if !l.OwnDNS {
		args = append(args, "--dns", g.Resolver.String())
	}
	args = append(append(args, l.Flags...), "--entrypoint", holdProgram, "--", l.Image, HoldCommand, "--", token)
	out, err := output(ctx, append(args, command...)...)
	if err != nil {
		return container{}, err
	}
	c, err := inspect[container](ctx, "container", strings.TrimSpace(string(out)))
	if err == nil {
		err = c.check(ctx, g.Sockets...)
	}
	if err != nil {
		_, _ = output(ctx, "rm", "--force", "--volumes", strings.TrimSpace(string(out)))
	}
	return c, err
}

// executable returns the path of this program in a form that Docker can mount.
func executable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if strings.Contains(self, ",") {
		return "", fmt.Errorf("%s has a comma, which docker cannot mount: install the gateway elsewhere", self)
	}
	return filepath.EvalSymlinks(self)
}

// startTimeout bounds the time for Docker to start the first process of a container.
const startTimeout = time.Minute

// connect attaches a container that was just started and waits, installs the CA, and lets its command start.
func (g Gateway) connect(ctx context.Context, id, token string) (box string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := inspect[container](ctx, "container", id)
	for err == nil && c.State.Pid == 0 {
		if c.State.Status == "exited" || c.State.Status == "dead" {
			return "", errors.New("the container has ended before it had a network")
		}
		select {
		case <-ctx.Done():
			return "", errors.New("docker does not start the container")
		case <-time.After(10 * time.Millisecond):
		}
		c, err = inspect[container](ctx, "container", id)
	}
	if err != nil {
		return "", err
	}
	body := maps.Clone(g.Body)
	body["container"] = c.ID
	if name := strings.TrimPrefix(c.Name, "/"); body["name"] == nil {
		body["name"] = name
	}
	var answer struct{ ID string }
	if err := g.Client.Do(ctx, "POST", "/v2/box/attach", body, &answer); err != nil {
		name, _ := body["name"].(string)
		return "", cli.NameTaken(ctx, g.Client, name, err)
	}
	if err := g.trust(ctx, answer.ID, c, token); err != nil {
		return "", errors.Join(err, g.Client.Do(context.WithoutCancel(ctx), "POST", api.BoxPath(answer.ID, "detach"), nil, nil))
	}
	return answer.ID, nil
}

func (g Gateway) trust(ctx context.Context, box string, c container, token string) error {
	_, err := g.trustOrRenew(ctx, box, c, token, false)
	return err
}

func (g Gateway) trustOrRenew(ctx context.Context, box string, c container, token string, renew bool) (installed bool, err error) {
	var ca []byte
	if err := g.Client.Get(ctx, api.BoxPath(box, "ca"), &ca); err != nil {
		return false, err
	}
	return install(ctx, c, ca, g.Roots, token, renew)
}

// InstallCA installs the CA of a box in its container. id is the full ID, because another container may have taken the
// name.
func (g Gateway) InstallCA(ctx context.Context, box, id string) error {
	_, err := g.installCA(ctx, box, id, false)
	return err
}

// RenewCA is InstallCA for a container in which the CA was installed before. It reports whether it was.
func (g Gateway) RenewCA(ctx context.Context, box, id string) (bool, error) {
	return g.installCA(ctx, box, id, true)
}

func (g Gateway) installCA(ctx context.Context, box, id string, renew bool) (bool, error) {
	c, err := inspect[container](ctx, "container", id)
	if err == nil && c.ID != id {
		err = fmt.Errorf("docker answers about the container %q, not %q", c.ID, id)
	}
	if err == nil && c.State.Pid == 0 {
		err = errors.New("the container does not run")
	}
	if err == nil {
		err = c.check(ctx, g.Sockets...)
	}
	if err != nil {
		return false, err
	}
	return g.trustOrRenew(ctx, box, c, "", renew)
}

// Disconnect removes a container from its networks before it is attached, if the user agrees. It refuses a container that
// the gateway could not confine.
func (g Gateway) Disconnect(ctx context.Context, name string, agreed bool, in io.Reader, out io.Writer) error {
	c, err := inspect[container](ctx, "container", name)
	if err != nil {
		return err
	}
	if err := c.check(ctx, g.Sockets...); err != nil {
		return err
	}
	networks := slices.DeleteFunc(slices.Sorted(maps.Keys(c.NetworkSettings.Networks)), func(n string) bool { return n == "none" })
	if len(networks) == 0 {
		return nil
	}
	list := strings.Join(networks, ", ")
	if c.HostConfig.NetworkMode == "host" || strings.HasPrefix(c.HostConfig.NetworkMode, "container:") {
		return fmt.Errorf("the container has the network of another (%s): start it with --network none", c.HostConfig.NetworkMode)
	}
	if !agreed && (in == nil || !confirm(in, out, fmt.Sprintf("Disconnect the container from %s? Its ports are not published any more. [y/N] ", list))) {
		return fmt.Errorf("the container is connected to %s, and the gateway must be its only way out: --disconnect takes it off", list)
	}
	for _, n := range networks {
		if _, err := output(ctx, "network", "disconnect", n, c.ID); err != nil {
			return err
		}
	}
	return g.redirectDNS(c)
}

// redirectDNS points a container from Docker's embedded DNS server, which is gone with the network, to the gateway.
func (g Gateway) redirectDNS(c container) error {
	data, err := os.ReadFile(c.ResolvConfPath)
	if err != nil || !strings.Contains(string(data), "127.0.0.11") {
		return nil //nolint:nilerr // no file, or its servers are reached through the gateway
	}
	return os.WriteFile(c.ResolvConfPath, []byte("nameserver "+g.Resolver.String()+"\n"), 0o644)
}

// confirm asks a question on a terminal.
func confirm(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	return err == nil && slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// HoldCommand is the hidden command of the gateway that starts as the first process of a container.
const HoldCommand = "hold"

// Paths and the interface that the gateway uses in a container created here.
const (
	holdProgram = "/.boxgate-hold/gateway" // the mounted gateway program
	readyFile   = "/.boxgate-ready-"       // followed by the container's token; created by the host once everything is ready
	link        = "eth0"                   // set up by the gateway once its rules are active
)

// Hold waits until the container has its network and certificates, then executes the container's command. args is the
// container's token followed by that command. Until then no code of the image runs except its health check, which has no
// network yet.
func Hold(args []string) error {
	token, args := args[0], args[1:]
	if len(token) != len(rand.Text()) {
		return errors.New("this container was made by another version of the gateway: make it again with gateway docker run")
	}
	ready := readyFile + token
	for !isReady(ready) {
		time.Sleep(5 * time.Millisecond)
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return fmt.Errorf("there is no program %q in the container", args[0])
	}
	return fmt.Errorf("%s cannot be started: %w", args[0], unix.Exec(path, args, os.Environ()))
}

// isReady reports whether the file exists and the network is up. The file name contains a random token for this
// container, so no image can contain it, not even one committed from another container.
func isReady(file string) bool {
	if _, err := os.Lstat(file); err != nil {
		return false
	}
	i, err := net.InterfaceByName(link)
	return err == nil && i.Flags&net.FlagUp != 0
}
