package differential

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// jvm is a Java virtual machine of the clients' image. It runs the servers of all Java rows, because a start takes a
// second of CPU time.
type jvm struct{ started *program }

// java runs testdata/Server.java in a mode: "https" is the JDK's HttpsServer, "socket" an SSLServerSocket. The
// following words change defaults.
func java(mode string) server {
	return server{programPort, true, func(s *site) {
		if s.jvm.started == nil {
			s.startJVM()
		}
		p, address := s.jvm.started, s.V4(s.alive).String()
		fmt.Fprintf(p.in, "%s %d %s %s\n", address, programPort, inJVM(pemFile(s.t, s.chain(nil))), mode)
		s.until = func() bool { return strings.Contains(p.text(), "ready "+address+"\n") }
	}}
}

// startJVM starts the JVM with the files of the image, in a new mount namespace that contains the test's temporary
// directory.
func (s *site) startJVM() {
	s.t.Helper()
	dir := s.t.TempDir()
	class, err := os.ReadFile("testdata/Server.class")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "Server.class"), class, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.jvm.started = s.runs(dir, "", "unshare", "--mount", "sh", "-c", `mount --bind "$1" "$2/mnt" && mount --rbind /dev "$2/dev" && mount -t proc proc "$2/proc" &&
exec chroot "$2" java -Xmx64m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$3" Server`, "sh", os.TempDir(), clientsRootfs(s.t), inJVM(dir))
}

// inJVM returns the path of a temporary file of the test as the JVM sees it.
func inJVM(path string) string {
	return "/mnt" + strings.TrimPrefix(path, filepath.Clean(os.TempDir()))
}
