package peer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
)

// squid returns the peer squid, the only one that requires its own user, which may not enter /var/lib/boxgate. It gets
// a view of the file system in which that directory is readable and has only the needed files.
func (r Root) squid() *Peer {
	p := r.program("squid", "squid", "-v", squidArgs, Intercept)
	p.Explicit = true
	if p.binary != "" {
		p.start, _ = exec.LookPath("unshare") // part of util-linux; squid cannot start without it
	}
	return p
}

// opened runs a command that sees only the peers' and the run's directories below a readable /var/lib/boxgate.
const opened = `root=$1 run=$2; shift 2
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/root /mnt/run
mount --bind "$root" /mnt/root
mount --bind "$run" /mnt/run
mount -t tmpfs -o mode=755 none /var/lib/boxgate
mkdir -p "$root" "$run"
mount --move /mnt/root "$root"
mount --move /mnt/run "$run"
exec "$@"`

// squidArgs creates the certificate database, which belongs to squid's user.
func squidArgs(e *environment) ([]string, error) {
	path, err := e.render("squid.conf")
	database := filepath.Join(e.Dir, "certificates")
	if err := errors.Join(err, e.joinCA(filepath.Join(e.Dir, "ca.pem")), os.RemoveAll(database)); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(e.Squid, "security_file_certgen"), "-c", "-s", database, "-M", "64MB")
	cmd.Env = e.root.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	squid, run := e.root.find("squid"), filepath.Dir(e.Dir)
	return []string{"-m", "sh", "-ec", opened, "sh", string(e.root), run, squid, "-N", "-f", path}, giveToProxy(e.Dir)
}

// giveToProxy gives a directory to the user proxy, which squid runs as and every Debian has.
func giveToProxy(dir string) error {
	u, err := user.Lookup("proxy")
	if err != nil {
		return err
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, gid))
	})
}
