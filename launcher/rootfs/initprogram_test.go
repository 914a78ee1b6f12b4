package rootfs

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestInitProgramIsAnExecutable(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := initProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil || f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(data)) {
			t.Errorf("%s: %+v, %v", arch, f, err)
		}
	}
	if _, err := initProgram("mips"); err == nil {
		t.Error("an architecture without a program was accepted")
	}
}

// TestInitProgramRuns: the program ignores SIGCHLD, so that the kernel reaps its children, and does not end. With QEMU set
// to an emulator of the architecture (make arm64), it runs there.
func TestInitProgramRuns(t *testing.T) {
	t.Parallel()
	data, err := initProgram(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	command := []string{path}
	if emulator := os.Getenv("QEMU"); emulator != "" {
		command = []string{emulator, path}
	}
	cmd := exec.Command(command[0], command[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	ignoring := regexp.MustCompile(`(?m)^SigIgn:\s*[0-9a-f]*[13579bdf][0-9a-f]{4}$`) // bit 16 is SIGCHLD
	for deadline := time.Now().Add(time.Minute); ; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err == nil && ignoring.Match(status) {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not ignore SIGCHLD:\n%s", status)
		}
	}
	_ = cmd.Process.Signal(syscall.SIGCHLD)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-ended; cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended by itself: %v", err)
	}
}
