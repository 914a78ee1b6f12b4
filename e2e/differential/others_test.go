package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// others are programs in testdata: the command that runs each with the authorities and the rows, and its files.
var others = map[string]struct {
	command string
	files   []string
}{
	"Node":   {"node client.js", []string{"client.js"}},
	"Python": {"python3 client.py", []string{"client.py"}},
	"Java":   {"java -Djdk.httpclient.allowRestrictedHeaders=host -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp . Client", []string{"Client.class"}},
}

// TestOtherClientsAreTheSameThroughTheGateway is [TestServersAreTheSameThroughTheGateway] for clients that only the
// clients' image has.
func TestOtherClientsAreTheSameThroughTheGateway(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	l := newLab(t, clientsImage)
	clients := map[string]func(*way, []row) map[string]seen{}
	for name := range others {
		clients[name] = func(w *way, rows []row) map[string]seen { return w.other(name, rows) }
	}
	l.compare(l.ask(clients), []string{"Node", "Python", "Java"})
}

const clientsImage = "clients"

// withClients adds the clients' image to a configuration.
func withClients(t *testing.T, c *config.Config) {
	t.Helper()
	c.Launcher.Images[clientsImage] = clientsRootfs(t)
}

// clientsRootfs returns the root file system of the clients' image.
func clientsRootfs(t *testing.T) string {
	t.Helper()
	rootfs, err := filepath.EvalSymlinks(filepath.Join(harness.ImageDir(), "debian-clients-7", "rootfs"))
	if err != nil {
		t.Fatalf("the image of the clients' tests is missing: make image (%v)", err)
	}
	return rootfs
}

// other requests all rows with a program, and returns its views by row name.
func (w *way) other(name string, rows []row) map[string]seen {
	w.T.Helper()
	program := others[name]
	dir := "/workspace/home/" + strings.ToLower(name)
	script := "mkdir " + dir + " && cd " + dir
	for _, file := range program.files {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			w.T.Fatal(err)
		}
		script += fmt.Sprintf(" && printf '%s' >%s", octal(data), file)
	}
	w.MustSh(w.Box, script)
	var list strings.Builder
	for _, r := range rows {
		method, length := r.method, 0
		if r.upload {
			method, length = "POST", 1<<20
		}
		if method == "" {
			method = "GET"
		}
		fmt.Fprintf(&list, "%s\t%s\t%s\t%s\t%d\n", r.name, r.url(), method, strings.Join(r.requests(), unit), length)
	}
	text := w.MustSh(w.Box, "cd "+dir+" && cat >rows <<'END'\n"+list.String()+"END\n"+program.command+" "+w.file+" rows")
	out := map[string]seen{}
	for one := range strings.SplitSeq(strings.TrimSuffix(text, record), record) {
		parts := strings.Split(one, unit)
		if len(parts) != 7 {
			w.T.Fatalf("%s: %s: %q in %.2000q", w.name, name, one, text)
		}
		status, _ := strconv.Atoi(parts[2])
		size, _ := strconv.Atoi(parts[4])
		if out[parts[0]] = answer(status, parts[3], strings.Split(parts[5], "\n"), size, parts[6]); parts[1] != "" {
			out[parts[0]] = failed(parts[1])
		}
	}
	return out
}

// octal returns bytes for a shell's printf.
func octal(data []byte) string {
	var out strings.Builder
	for _, b := range data {
		fmt.Fprintf(&out, `\%03o`, b)
	}
	return out.String()
}
