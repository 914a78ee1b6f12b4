package testnet

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killProcesses kills the processes still in the namespace: commands started there and their children. The calling
// process is never among them because its threads leave the namespace again.
func (ns *NS) killProcesses() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		pids, err := ns.processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not leave the test internet", pids)
		}
		if err := killAndWait(pids, deadline); err != nil {
			return err
		}
	}
}

// killAndWait kills processes and waits until they have exited, using pidfds so that no reused PID is hit.
func killAndWait(pids []int, deadline time.Time) error {
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		if err == nil {
			left := max(time.Until(deadline).Milliseconds(), 1)
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left))
		}
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// processes returns the processes whose main thread is in the namespace.
func (ns *NS) processes() ([]int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) == nil && st.Ino == ns.inode { // otherwise it has exited or is in another namespace
			out = append(out, pid)
		}
	}
	return out, nil
}
