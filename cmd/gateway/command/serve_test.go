package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/policy"
)

// dyingVariable turns this test binary into a process that logs to standard error and ends by the signal with that name.
const dyingVariable = "BOXGATE_COMMAND_TEST_SIGNAL"

// maskVariable turns this test binary into a process that prints the signals which its children find blocked.
const maskVariable = "BOXGATE_COMMAND_TEST_MASK"

func TestMain(m *testing.M) {
	if os.Getenv(maskVariable) != "" {
		err := unblockSignals()
		out, cerr := exec.Command("grep", "SigBlk", "/proc/self/status").CombinedOutput()
		fmt.Print(string(out), errors.Join(err, cerr), os.Getenv(unblockedVariable))
		os.Exit(0)
	}
	if name := os.Getenv(dyingVariable); name != "" {
		logAndDie(unix.SignalNum(name))
	}
	if err := os.Setenv("BOXGATE_CONFIG", os.DevNull); err != nil { // not the file of a gateway on this machine
		panic(err)
	}
	os.Exit(m.Run())
}

// logAndDie logs an allowing decision, which is buffered, and sends itself the signal.
func logAndDie(s syscall.Signal) {
	_, out, err := openLog(config.Log{Level: "info", Format: "json"}, os.Stderr)
	if err != nil {
		panic(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(fatalSignals, os.Interrupt, syscall.SIGTERM)...) // as after the first SIGINT or SIGTERM
	go syncOn(signals, nil, out)
	audit.New(audit.Options{Lines: out}).Record(audit.Event{Name: "last.example.com", Verdict: policy.Allow})
	_ = unix.Kill(unix.Getpid(), s)
	select {}
}

// Programs that the gateway starts find no signal blocked, whatever it was started with.
func TestSignalsAreNotBlocked(t *testing.T) {
	t.Parallel()
	for _, blocked := range [][]unix.Signal{nil, {unix.SIGHUP, unix.SIGUSR2, unix.SIGALRM, 40}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), maskVariable+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		ended := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			mask := unix.Sigset_t{}
			for _, s := range blocked {
				mask.Val[(s-1)/64] |= 1 << ((s - 1) % 64)
			}
			ended <- errors.Join(unix.PthreadSigmask(unix.SIG_SETMASK, &mask, nil), cmd.Run())
		}()
		if err := <-ended; err != nil || out.String() != "SigBlk:\t0000000000000000\n<nil>" {
			t.Errorf("started with %v blocked: %v, %q", blocked, err, out.String())
		}
	}
}

// Whatever signal ends the gateway, its log is complete, and the signal keeps its default effect, including the dump of
// goroutines.
func TestNothingLoggedIsLostByASignal(t *testing.T) {
	t.Parallel()
	for _, s := range append(fatalSignals, os.Interrupt, syscall.SIGTERM) {
		name := unix.SignalName(s.(syscall.Signal))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(s) {
				t.Skip("these tests were started with the signal ignored, and so would be the process")
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), dyingVariable+"="+name)
			var log bytes.Buffer
			cmd.Stderr = &log
			if err := cmd.Run(); err == nil {
				t.Error("the process did not die")
			}
			line, rest, _ := strings.Cut(log.String(), "\n")
			var e audit.Event
			if json.Unmarshal([]byte(line), &e) != nil || e.Name != "last.example.com" {
				t.Errorf("the log begins with %q", line)
			}
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if byDefault := status.Signaled() && status.Signal() == s; !byDefault && !strings.Contains(rest, name) {
				t.Errorf("the process ended with %v and wrote %q", cmd.ProcessState, rest)
			}
		})
	}
}

// The gateway's own lines and the decisions are logged in order.
func TestTheLogIsInOneOrder(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	log, out, err := openLog(config.Log{Level: "info", Format: "json"}, w)
	if err != nil {
		t.Fatal(err)
	}
	l := audit.New(audit.Options{Lines: out})
	for i := range 3 {
		l.Record(audit.Event{Box: "b", Status: i, Verdict: policy.Allow})
		log.Info("operation", zap.Int("status", i))
		log.Debug("not logged")
	}
	if err := log.Sync(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	dec := json.NewDecoder(r)
	for i := range 6 {
		var line struct {
			Level, Time, Msg, Caller string
			Status                   int
		}
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		want, caller := "decision", false
		if i%2 == 1 {
			want, caller = "operation", true
		}
		if line.Msg != want || line.Status != i/2 || line.Level != "info" || line.Time == "" || (line.Caller != "") != caller {
			t.Errorf("line %d is %+v", i, line)
		}
	}
}

// TestGreeting: the greeting contains everything needed next, and leaves out listeners that are off.
func TestGreeting(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	text := greeting(cfg)
	for _, part := range []string{
		"/run/boxgate/admin.sock, http://127.0.0.1:8600\n", "/var/lib/boxgate/api-key\n", "https://BOX-8000.preview.localhost\n",
		"http://127.0.0.1:9600/metrics\n", "sudo gateway box create",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	cfg.Admin.Listen, cfg.Metrics.Listen, cfg.Ingress.HTTPS = "", "", "127.0.0.1:8443"
	if text = greeting(cfg); strings.Contains(text, "http://") || !strings.Contains(text, "preview.localhost:8443\n") {
		t.Error(text)
	}
	if cfg.Ingress.HTTPS = ""; !strings.Contains(greeting(cfg), "ingress.https is off") {
		t.Error(greeting(cfg))
	}
}
