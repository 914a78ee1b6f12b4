package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/cli"
)

// demoProgram is the program that runs the tour. It is separate from the gateway, which holds keys, because it contains a
// simulated internet with an attacker's servers and certificate authorities.
const demoProgram = "gateway-demo"

// newDemoCommand is `gateway demo`: the tour.
func newDemoCommand(o *cli.Options) *cobra.Command {
	var imageDir, etcd string
	var keep, fleet bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate every promise over real kernel paths, in temporary namespaces",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding %s next to this program: %w", demoProgram, err)
			}
			args := []string{demoProgram, "--gateway=" + self, "--image-dir=" + imageDir, fmt.Sprintf("--keep=%t", keep), fmt.Sprintf("--json=%t", o.JSON)}
			if fleet {
				args = append(args, "--fleet", "--etcd="+etcd)
			}
			return becomeDemo(cmd.Context(), filepath.Dir(self), args)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything open after the last step, with commands to try, until Enter or Ctrl-C")
	cmd.Flags().BoolVar(&fleet, "fleet", false, "demonstrate a fleet of three hosts instead, with an etcd")
	cmd.Flags().StringVar(&etcd, "etcd", "/var/lib/boxgate/kubernetes/etcd", "with --fleet: the program of etcd, which make etcd builds")
	cmd.Flags().StringVar(&imageDir, "image-dir", "/var/lib/boxgate/images", "where the image of the box is kept")
	return cmd
}

// becomeDemo replaces this process with the demo program in dir, the folder of the running gateway. It returns only on
// failure. Neither PATH nor the working directory influences which program that is.
func becomeDemo(ctx context.Context, dir string, args []string) error {
	owners, err := trustedOwners()
	if err != nil {
		return err
	}
	folder, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s, the folder of the gateway: %w", dir, err)
	}
	defer unix.Close(folder)
	if err := checkDemo(folder, dir, owners); err != nil {
		return err
	}
	if ctx.Err() != nil { // an earlier signal was for this process
		return ctx.Err()
	}
	// Use the folder that was checked: only trusted users can have changed it since.
	err = unix.Exec(fmt.Sprintf("/proc/self/fd/%d/%s", folder, demoProgram), args, os.Environ())
	return fmt.Errorf("%s cannot be executed: %w; it must be of the same release as this gateway, and for this machine", filepath.Join(dir, demoProgram), err)
}

// trustedOwners returns the users who may own the demo program: root, the caller, and the owner of the running gateway,
// whose program the caller already runs. The last one allows `sudo make demo` after `make build`.
func trustedOwners() ([]uint32, error) {
	var self unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &self); err != nil {
		return nil, fmt.Errorf("finding the owner of this program: %w", err)
	}
	return []uint32{0, uint32(os.Geteuid()), self.Uid}, nil
}

// checkDemo requires that the open folder contains the demo program, and that only the given users can replace or change
// it.
func checkDemo(folder int, dir string, owners []uint32) error {
	path := filepath.Join(dir, demoProgram)
	var above, program unix.Stat_t
	if err := unix.Fstat(folder, &above); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	err := unix.Fstatat(folder, demoProgram, &program, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s: the demo is a separate program, which must be next to the gateway. "+
			"Build both with `make build`, install the package boxgate-demo, or put %s of the gateway's release there", path, demoProgram)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if program.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is not a regular file: put the program itself there", path)
	}
	return errors.Join(checkOwner(dir, above, owners), checkOwner(path, program, owners))
}

// checkOwner rejects a file or folder owned by another user, or writable by group or others.
func checkOwner(path string, found unix.Stat_t, owners []uint32) error {
	if !slices.Contains(owners, found.Uid) {
		return fmt.Errorf("%s belongs to user %d, who could have put any program there: it must belong to root or to you (`chown root %s`)", path, found.Uid, path)
	}
	if found.Mode&0o022 != 0 {
		return fmt.Errorf("others may write to %s (mode %#o), and could have put any program there: `chmod go-w %s`", path, found.Mode&0o777, path)
	}
	return nil
}
