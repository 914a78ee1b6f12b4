package launcher

import (
	"bytes"
	"testing"

	"boxgate/launcher/boxfs/worker"
)

// TestBoxWithItsOwnAccount: the ordinary user of a box has the name and the home directory that the box was made with: for commands,
// the files of the box and SFTP, after a restart, and in boxes of a snapshot. sudo knows the name.
func TestBoxWithItsOwnAccount(t *testing.T) {
	t.Parallel()
	l := rootLauncher(t)
	account := Account{Name: "user", Home: "/home/user"}
	id := newBox(t, l, func(s *Spec) { s.Account = account })
	check := func(what string) {
		t.Helper()
		for _, user := range []string{"", "user", "boxuser"} {
			r := run(t, l, id, ExecSpec{User: user, Args: []string{"sh", "-c", `echo "$(whoami) $(id -u):$(id -g) $(id -gn) $PWD $HOME $USER $LOGNAME"`}})
			if r.out != "user 1000:1000 user /home/user /home/user user user\n" {
				t.Errorf("%s, as %q: %+v", what, user, r)
			}
		}
		want(t, sh(t, l, id, "sudo -n id -u"), "0")
	}
	check("new")
	if _, err := exitOf(t.Context(), l, id, ExecSpec{User: "users", Args: []string{"true"}}); err == nil {
		t.Error("another name is looked up")
	}
	want(t, run(t, l, id, ExecSpec{Args: []string{"pwd"}, Cwd: "../user/."}), "/home/user")
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "echo $HOME; pwd"}, User: "33"}), "/home/user\n/home/user")
	want(t, sh(t, l, id, "cd /workspace/home && pwd -P && cd /home/boxuser && pwd -P && stat -c '%U %a' /home /home/user"), "/home/user\n/home/user\nroot 755\nuser 755")
	want(t, rootSh(t, l, id, "echo $HOME:$PATH"), "/root:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")

	s, done, err := l.OpenFiles(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	want(t, rootSh(t, l, id, "install -d -m 755 /srv/x && install -m 666 /dev/null /srv/x/f"), "")
	if err := s.Send(worker.Request{Op: worker.OpWrite, Path: []byte("/srv/x/f")}, bytes.NewReader([]byte("via home"))); err != nil {
		t.Error(err) // staged in the home directory, since nothing can be made beside the file
	}
	want(t, sh(t, l, id, "cat /srv/x/f; ls -A ~; mv /workspace/home /workspace/was; echo kept >note"), "via home")
	done()

	restarted(t, l, id, true)
	check("restarted")
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), id, "account", nil) })
	id = newBox(t, l, func(s *Spec) { s.Layers, s.Account = layers, account })
	check("from a snapshot")
	want(t, sh(t, l, id, "cat note; cd /workspace/home && pwd -P"), "kept\n/home/user")
	id = newBox(t, l, func(s *Spec) { s.Layers, s.Account = layers, Account{Name: "other", Home: "/workspace/other"} })
	want(t, sh(t, l, id, "whoami; pwd; cat /home/user/note"), "other\n/workspace/other\nkept")
	if _, err := l.Prepare(t.Context(), Spec{ID: newID(), Account: Account{Home: "/home/../etc"}}); err == nil {
		t.Error("a home directory elsewhere is accepted")
	}
}
