package launcher

import (
	"testing"

	"boxgate/launcher/furnish"
)

// TestRestartOfAHostileRoot stops a box that has made of its root what it could, and starts it again on that: it has its files and
// user IDs, another network namespace, and its first process is ours.
func TestRestartOfAHostileRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, run(t, l, id, ExecSpec{User: "root", Args: []string{"sh", "-c", `set -e
echo kept > /kept; chmod 777 /; chown 1000 /kept
rm ` + furnish.InitPath + `; ln -s /kept ` + furnish.InitPath + `
cd /; rm -rf /workspace; ln -s /etc/../.. /workspace
echo made`}}), "made")
	r, err := l.load(id)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if st, err := l.State(t.Context(), id); err != nil || st.State != StateStopped {
			t.Errorf("stopped: %+v %v", st, err)
		}
		if _, err := l.Renew(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := l.Restart(t.Context(), Spec{ID: id}); err != nil {
			t.Fatal(err)
		}
		want(t, run(t, l, id, ExecSpec{User: "root", Cwd: "/", Args: []string{"sh", "-c", `cat /kept; stat -c %u:%g:%a /kept /; test ! -L ` + furnish.InitPath + ` && echo ours`}}),
			"kept\n1000:0:644\n0:0:777\nours")
	}
	if after, err := l.load(id); err != nil || after.IDIndex != r.IDIndex {
		t.Errorf("its user IDs were %d and are %d, %v", r.IDIndex, after.IDIndex, err)
	}
}
