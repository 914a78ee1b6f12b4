package enclosure

import (
	"fmt"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is the user that the command runs as.
type User struct {
	UID, GID int
	Groups   []int
	Name     string // "" if the user is not in the user database
	Home     string
}

// CallingUser returns the user who called sudo, or otherwise the user of this process.
func CallingUser() (User, error) {
	uid, gid := os.Getuid(), os.Getgid()
	if name := os.Getenv("SUDO_UID"); name != "" && uid == 0 {
		var err error
		if uid, err = strconv.Atoi(name); err != nil || uid < 0 {
			return User{}, fmt.Errorf("SUDO_UID is %q, which is not a user ID", name)
		}
		if gid, err = strconv.Atoi(os.Getenv("SUDO_GID")); err != nil || gid < 0 {
			return User{}, fmt.Errorf("SUDO_GID is %q, which is not a group ID", os.Getenv("SUDO_GID"))
		}
	}
	u := User{UID: uid, GID: gid, Groups: []int{gid}}
	known, err := user.LookupId(strconv.Itoa(uid))
	if err != nil { // not in the database
		return u, nil // the command still runs with these IDs
	}
	u.Name, u.Home = known.Username, known.HomeDir
	ids, err := known.GroupIds()
	if err != nil {
		return u, nil // it has its first group
	}
	for _, id := range ids {
		if n, err := strconv.Atoi(id); err == nil && !slices.Contains(u.Groups, n) {
			u.Groups = append(u.Groups, n)
		}
	}
	return u, nil
}

// sudoVariables are set by sudo. They are removed, because the command runs as the caller.
var sudoVariables = []string{"SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND"}

// Environment returns the environment for a command of the user: the given one, but under sudo with the user's own home and
// name instead of root's.
func (u User) Environment(given []string) []string {
	bySudo := slices.ContainsFunc(given, func(kv string) bool { return strings.HasPrefix(kv, "SUDO_UID=") })
	if !bySudo {
		return slices.Clone(given)
	}
	env := map[string]string{"HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "MAIL": ""}
	var out []string
	for _, kv := range given {
		name, _, _ := strings.Cut(kv, "=")
		if _, ours := env[name]; !ours && !slices.Contains(sudoVariables, name) {
			out = append(out, kv)
		}
	}
	for _, name := range []string{"HOME", "USER", "LOGNAME"} {
		if env[name] != "" {
			out = append(out, name+"="+env[name])
		}
	}
	return out
}

// Create creates or truncates a file with the rights of the user, and opens it for writing.
func (u User) Create(path string) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its identity
		if err = asUser(u); err == nil {
			f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		}
	}()
	<-done
	return f, err
}

// asUser gives the calling thread the user's rights to files, without capabilities that override them.
func asUser(u User) error {
	groups := make([]uint32, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = uint32(g)
	}
	// The raw calls change only this thread; the functions of package unix change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
		return errno
	}
	if err := unix.Setfsgid(u.GID); err != nil {
		return err
	}
	return unix.Setfsuid(u.UID)
}
