package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Debian is the name of the image of boxes that is built here from Debian packages.
const Debian = "debian"

// DebianMin is the name of a small image that is built in the same way: a shell, the basic utilities, curl and busybox.
const DebianMin = "debian-min"

// recipe describes how an image is built from Debian packages.
type recipe struct {
	// key is the directory of the image. Its number is incremented when the build changes: the new image gets another
	// directory, since running boxes may still use the old one.
	key      string
	variant  string // of mmdebstrap
	packages string // in addition to those of the variant
	about    string // for the first line of progress
	complete bool   // with Python, pip, Node and npm
	agents   bool   // with coding agents
}

// completePackages are programs that most commands of an agent need (Node and npm come from elsewhere, see nodeRelease; ssh
// is for git; esbuild is for TypeScript; libstdc++6 is for Node; sudo is for boxes with launcher.root), and openssl, ip, ping and ps
// for debugging.
const completePackages = "ca-certificates,curl,git,python3,python3-pip,python3-venv,python-is-python3,esbuild,libstdc++6,openssl,openssh-client,iproute2,iputils-ping,procps,sudo"

// recipes are the images built here, by name.
var recipes = map[string]recipe{
	Debian: {key: "debian-9", variant: "minbase", about: "about a minute, once", complete: true, packages: completePackages},
	// The key also has the one of the agents, see [Store.source].
	DebianAgents: {key: "debian-agents-2", variant: "minbase", about: "some minutes, once", complete: true, agents: true, packages: completePackages + ",ripgrep"},
	DebianMin:    {key: "debian-min-1", variant: "essential", about: "once", packages: "ca-certificates,curl,busybox"},
}

// debianSuite is the Debian release of boxes.
const debianSuite = "bookworm"

// mergedUsrHook makes mmdebstrap create the links of a merged /usr itself. Otherwise the package usrmerge does so, which
// depends on perl.
const mergedUsrHook = "/usr/share/mmdebstrap/hooks/merged-usr"

// debianEnv lets commands find programs that the box's user installs. That directory comes last, so that it cannot shadow
// programs of the system for root.
var debianEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/workspace/home/.local/bin"}

// pipConfig lets pip install packages outside of virtual environments, as in the official Python images: a box serves a
// single purpose.
const pipConfig = "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n"

// debianKeyring verifies the packages. Debian hosts have it; on others it can be installed.
const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

var errNoMmdebstrap = errors.New("mmdebstrap is missing: apt-get install mmdebstrap")

// buildDebian fills rootfs with a Debian. It accepts only files signed by Debian's archive keys, except Node and npm, see
// nodeRelease.
func (s Store) buildDebian(ctx context.Context, r recipe, rootfs string, progress func(string)) error {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return errNoMmdebstrap
	}
	if _, err := os.Stat(debianKeyring); err != nil {
		return errors.New("the archive keys of Debian are missing: apt-get install debian-archive-keyring")
	}
	var node []download
	if r.complete {
		var err error
		node, err = fetchNode(ctx, filepath.Dir(rootfs), progress)
		defer closeAll(node)
		switch {
		case errors.Is(err, errDigest) || ctx.Err() != nil:
			return errors.Join(err, context.Cause(ctx))
		case err != nil:
			progress(fmt.Sprintf("npm's registry cannot be used (%v): installing Debian's Node and npm instead, which are old; name a mirror in npm_config_registry", err))
			r.packages += ",nodejs,npm"
		}
	}
	var programs []download
	if r.agents {
		var err error
		programs, err = s.fetchAgents(ctx, filepath.Dir(rootfs), progress)
		defer closeAll(programs)
		if err != nil {
			return fmt.Errorf("the agents come from npm's registry, or a mirror named in npm_config_registry: %w", err)
		}
	}
	progress("building the image from Debian packages (" + r.about + ")")
	if err := runWithProgress(ctx, progress, "mmdebstrap", r.arguments(ctx, rootfs)...); err != nil {
		return err
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := tidyDebian(root); err != nil || !r.complete {
		return err
	}
	if err := configurePrograms(root); err != nil {
		return err
	}
	if err := installNode(ctx, root, node); err != nil || !r.agents {
		return err
	}
	return s.installAgents(ctx, root, programs)
}

// arguments returns the arguments of mmdebstrap.
func (r recipe) arguments(ctx context.Context, rootfs string) []string {
	args := []string{
		"--mode=root", "--variant=" + r.variant, "--format=directory",
		// Only root can access the image directory, so apt cannot switch to its unprivileged user for downloads.
		`--aptopt=APT::Sandbox::User "root"`,
		"--dpkgopt=force-unsafe-io", // the complete image is synced
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-include=/usr/share/doc/*/copyright",
	}
	if _, err := os.Stat(mergedUsrHook); err == nil && !r.complete {
		args = append(args, "--hook-dir="+mergedUsrHook)
		r.packages += ",usr-is-merged"
	}
	args = append(args, "--include="+r.packages)
	for _, o := range hostAptProxies(ctx) {
		args = append(args, "--aptopt="+o)
	}
	args = append(args, debianSuite, rootfs)
	return append(args, hostDebianMirrors(ctx)...)
}

// runWithProgress runs a command and passes each line of its standard error to progress. The error contains the last lines.
// When ctx ends the whole process group is killed, so that no process keeps writing to a directory about to be removed.
func runWithProgress(ctx context.Context, progress func(string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	last := forwardLines(out, progress)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s failed (%w): %s", name, err, strings.Join(last, "; "))
	}
	return nil
}

// forwardLines calls progress for each line and returns the last few.
func forwardLines(r io.Reader, progress func(string)) (last []string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "I: "))
		if text == "" || strings.HasPrefix(text, "done") {
			continue
		}
		progress(text)
		if last = append(last, text); len(last) > 5 {
			last = last[1:]
		}
	}
	_, _ = io.Copy(io.Discard, r) // an overlong line must not block the command
	return last
}

// tidyDebian removes traces of this host from the image.
func tidyDebian(root *os.Root) error {
	for _, p := range []string{
		"etc/apt/apt.conf.d/99mmdebstrap", "etc/hostname", "etc/resolv.conf",
		"var/lib/apt/lists", "var/log/bootstrap.log",
	} {
		if err := root.RemoveAll(p); err != nil {
			return err
		}
	}
	if err := root.MkdirAll("var/lib/apt/lists/partial", 0o755); err != nil {
		return err
	}
	return tidySources(root)
}

// configurePrograms configures pip and makes ping work in boxes.
func configurePrograms(root *os.Root) error {
	return errors.Join(root.WriteFile("etc/pip.conf", []byte(pipConfig), 0o644), withoutFileCapabilities(root, "bin/ping"))
}

// withoutFileCapabilities removes a program's file capabilities: the kernel refuses to run a program whose file demands a
// capability that boxes cannot have, such as CAP_NET_RAW for ping, which does not need it (net.ipv4.ping_group_range).
func withoutFileCapabilities(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fremovexattr(int(f.Fd()), "security.capability")
	if err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return f.Chmod(0o755) // on file systems without capabilities, the package makes it set-user-ID
}

// tidySources keeps the package sources that the image was built from, except URLs with a password.
func tidySources(root *os.Root) error {
	const file = "etc/apt/sources.list"
	data, err := root.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, "@") {
			kept.WriteString(line)
		}
	}
	return root.WriteFile(file, []byte(kept.String()), 0o644)
}

// hostDebianMirrors returns apt lines for the suite as configured on this host, so that a mirror set up on the host serves
// the image too. It returns nil if the host has no sources for the suite; mmdebstrap then uses Debian's own.
func hostDebianMirrors(ctx context.Context) []string {
	const format = "$(CREATED_BY)|$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", format).Output()
	if err != nil {
		return nil
	}
	var mirrors []string
	seen := map[string]bool{}
	var base bool
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 5 || f[0] != "Packages" || f[4] != "main" {
			continue
		}
		if origin := f[1]; origin != "Debian" && !strings.HasPrefix(origin, "$(") { // unknown before the first apt-get update
			continue
		}
		switch f[3] {
		case debianSuite:
			base = true
		case debianSuite + "-updates", debianSuite + "-security":
		default:
			continue
		}
		entry := fmt.Sprintf("deb [signed-by=%s] %s %s main", debianKeyring, f[2], f[3])
		if !seen[entry] {
			seen[entry] = true
			mirrors = append(mirrors, entry)
		}
	}
	if !base {
		return nil
	}
	return mirrors
}

// hostAptProxies returns the proxies of apt on this host, as apt options, because mmdebstrap does not read the host's apt
// configuration.
func hostAptProxies(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "Acquire").Output()
	if err != nil {
		return nil
	}
	var opts []string
	for line := range bytes.Lines(out) {
		text := string(bytes.TrimSpace(line))
		key, _, _ := strings.Cut(text, " ")
		if strings.EqualFold(filepath.Ext(strings.ReplaceAll(key, "::", ".")), ".Proxy") {
			opts = append(opts, strings.TrimSuffix(text, ";"))
		}
	}
	return opts
}
