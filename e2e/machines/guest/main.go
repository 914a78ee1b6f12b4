// Command guest is the only program in the virtual machine of a test. It loads the drivers of the interface, and does what
// the test orders over a serial port (package orders).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/machines/orders"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the first process of a virtual machine")
		os.Exit(2)
	}
	err := boot()
	if err == nil {
		err = serve()
	}
	fmt.Println("guest:", err)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU exits: -no-reboot
	select {}
}

// boot mounts the file systems of the kernel and loads the modules in the order of their names.
func boot() error {
	for at, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount(kind, at, kind, 0, "")); err != nil {
			return fmt.Errorf("mounting %s: %w", at, err)
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, path := range modules { // sorted
		if err := load(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// load loads a module of the kernel.
func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const compressed = 4 // MODULE_INIT_COMPRESSED_FILE
	flags := 0
	if filepath.Ext(path) != ".ko" {
		flags = compressed
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) { // built in
		return err
	}
	return nil
}

// serve carries out the orders until the machine is to end.
func serve() error {
	port, err := await("a serial port of virtio", func() (*os.File, error) {
		found, err := filepath.Glob("/dev/vport*")
		if err == nil && len(found) == 0 {
			err = os.ErrNotExist
		}
		if err != nil {
			return nil, err
		}
		return os.OpenFile(found[0], os.O_RDWR, 0)
	})
	if err != nil {
		return err
	}
	m, err := newMachine()
	if err != nil {
		return err
	}
	in, out := json.NewDecoder(port), json.NewEncoder(port)
	for {
		var o orders.Order
		if err := in.Decode(&o); err != nil {
			return err
		}
		if o.Kind == orders.PowerOff {
			return io.EOF
		}
		answer, err := m.do(o)
		if err != nil {
			answer.Error, answer.Timeout = err.Error(), errors.Is(err, os.ErrDeadlineExceeded)
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

// patience bounds everything that the machine waits for.
const patience = time.Minute

// await calls f until it succeeds.
func await[T any](what string, f func() (T, error)) (T, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		v, err := f()
		if err == nil {
			return v, nil
		}
		if time.Now().After(deadline) {
			return v, fmt.Errorf("%s: %w", what, err)
		}
	}
}
