package launcher

import "context"

// EnsureImage makes the image ready for Create: it is built, pulled or unpacked once and kept. name is an entry of
// Config.Images or an image itself (empty: the entry "default"): "debian", built with mmdebstrap; a path to a root file
// system (a directory or a tar), an OCI layout or a docker-archive; or an OCI reference, which is pulled.
//
// progress, if not nil, is called with one line for each step. An interrupted build leaves nothing that a later call
// could mistake for an image; builders of the same image take turns, across processes.
func (l *Launcher) EnsureImage(ctx context.Context, name string, progress func(string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	return l.images.Ensure(ctx, name, progress)
}
