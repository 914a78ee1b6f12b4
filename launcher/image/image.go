// Package image creates the root file systems of images: built from Debian packages, pulled from a registry, or unpacked
// from an OCI layout or an archive, each once, and shared read-only by all boxes.
package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"boxgate/launcher/disk"
	"boxgate/launcher/files"
	"boxgate/launcher/image/agents"
)

// Image is one unpacked image in the image directory, or a root file system used in place.
type Image struct {
	Source string   `json:"source"`
	Env    []string `json:"env,omitempty"`   // from the image's configuration
	Bytes  int64    `json:"bytes,omitempty"` // on disk; 0 if unknown

	Rootfs string `json:"-"` // path; never written to
	Key    string `json:"-"` // its directory in the image directory; empty if it is used in place
}

// imageKind is how a source becomes a root file system.
type imageKind int

const (
	kindDebian    imageKind = iota // built here from Debian packages
	kindDirectory                  // a root file system, used in place and never written to
	kindLayout                     // an OCI layout directory
	kindArchive                    // a tar: docker-archive, OCI layout or root file system
	kindReference                  // pulled from a registry
)

// imageSource is an image as named by the operator.
type imageSource struct {
	text string
	kind imageKind
	key  string // its directory in the image directory
}

// Store keeps unpacked images in a directory, which several launchers may share.
type Store struct {
	Dir   string
	Names map[string]string // name → image; the entry "default" is used for an empty name
	// Agents are versions of programs in the image DebianAgents, by agent, which replace the pinned ones.
	Agents map[string]string
	// Reserve is how many bytes are kept free on the disk of Dir.
	Reserve int64

	impatient bool // for tests: much shorter timeouts for stalled downloads and retries
}

// checkReserve returns nil if n more bytes fit without using the reserve.
func (s Store) checkReserve(n int64) error {
	return disk.Reserve{Dir: s.Dir, Bytes: s.Reserve}.Check(n)
}

// reserveCheckInterval is how often the disk is checked while an image is built.
const reserveCheckInterval = 100 * time.Millisecond

// withReserveWatch returns a context that is cancelled when the disk has only the reserve left, with a [*disk.FullError] as its
// cause. Call done when the build has ended.
func (s Store) withReserveWatch(ctx context.Context) (_ context.Context, done func(), err error) {
	if err := s.checkReserve(0); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(reserveCheckInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := s.checkReserve(0); err != nil {
				cancel(err)
			}
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }, nil
}

// blobs returns the directory of an image's downloaded layers until they are unpacked.
func (s Store) blobs(key string) string { return filepath.Join(s.Dir, "."+key+".layers") }

// Ensure makes the image ready for Find: it is built, pulled or unpacked once and kept. progress is called with one line
// per step. Builders of the same image are serialized, across processes.
func (s Store) Ensure(ctx context.Context, name string, progress func(string)) error {
	src, err := s.source(name)
	if err != nil {
		return err
	}
	if _, err := s.open(src); err == nil {
		return nil
	}
	if src.kind == kindDirectory {
		return fmt.Errorf("image %s: not a root file system: it has no usr or bin directory", src.text)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the image directory: %w", err)
	}
	unlock, err := files.Lock(ctx, filepath.Join(s.Dir, "."+src.key+".lock"), func() {
		progress("waiting for another build of " + src.text)
	})
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.open(src); err == nil {
		return nil // another process has built it
	}
	if err := s.build(ctx, src, progress); err != nil {
		return fmt.Errorf("image %s: %w", src.text, err)
	}
	return nil
}

// staleImageTimeout bounds the removal of a failed build's files.
const staleImageTimeout = 2 * time.Minute

// build fills a temporary directory and renames it once it is complete and on disk.
func (s Store) build(ctx context.Context, src imageSource, progress func(string)) error {
	final := filepath.Join(s.Dir, src.key)
	temp := filepath.Join(s.Dir, "."+src.key+".building")
	for _, stale := range []string{temp, final} { // of an interrupted build; of one without a readable image.json
		if err := files.RemoveTree(ctx, stale); err != nil {
			return err
		}
	}
	defer func() { // the next build removes the rest
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), staleImageTimeout)
		defer cancel()
		_ = files.RemoveTree(cctx, temp)
	}()
	building, done, err := s.withReserveWatch(ctx)
	if err != nil {
		return err
	}
	defer done()
	rootfs := filepath.Join(temp, "rootfs")
	img := Image{Source: src.text}
	err = underImageUmask(func() (err error) {
		img.Env, err = s.fillRootfs(building, src, rootfs, progress)
		return err
	})
	if full, ok := errors.AsType[*disk.FullError](context.Cause(building)); ok {
		return errors.Join(full, os.RemoveAll(s.blobs(src.key)))
	}
	if err != nil {
		return err
	}
	if !looksLikeRoot(rootfs) {
		return errors.New("not a root file system: it has no usr or bin directory")
	}
	used, err := files.DiskUsage(ctx, temp)
	if err != nil {
		return err
	}
	img.Bytes = used.Bytes
	if err := files.WriteJSON(filepath.Join(temp, "image.json"), img); err != nil {
		return err
	}
	if err := syncTree(temp); err != nil {
		return err
	}
	return os.Rename(temp, final)
}

// fillRootfs creates the root file system of an image and returns the image's environment.
func (s Store) fillRootfs(ctx context.Context, src imageSource, rootfs string, progress func(string)) ([]string, error) {
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Dir(rootfs), 0o700); err != nil { // no other user may run set-user-ID programs of an image
		return nil, err
	}
	switch src.kind {
	case kindDebian:
		return debianEnv, s.buildDebian(ctx, recipes[src.text], rootfs, progress)
	case kindArchive:
		return unpackArchive(ctx, src.text, rootfs, progress)
	case kindLayout:
		return unpackLayout(ctx, src.text, rootfs, progress)
	case kindReference:
		return s.pullReference(ctx, src, rootfs, progress)
	}
	return nil, errors.New("an image of an unknown kind")
}

// Find returns an image that Ensure has made ready.
func (s Store) Find(name string) (Image, error) {
	src, err := s.source(name)
	if err != nil {
		return Image{}, err
	}
	return s.open(src)
}

// source determines the source that an image name refers to.
func (s Store) source(name string) (imageSource, error) {
	text := name
	if text == "" {
		text = "default"
	}
	if mapped := s.Names[text]; mapped != "" {
		text = mapped
	} else if text == "default" {
		text = Debian
	}
	r, built := recipes[text]
	switch {
	case built && r.agents:
		return imageSource{text: text, kind: kindDebian, key: r.key + "-" + agents.Key(s.Agents)}, nil
	case built:
		return imageSource{text: text, kind: kindDebian, key: r.key}, nil
	case filepath.IsAbs(text):
		return pathSource(text)
	default:
		return referenceSource(text)
	}
}

// IsPath reports whether an image is a file or directory of this host, and not one that any host can pull or build.
func IsPath(text string) bool { return filepath.IsAbs(text) }

// pathSource determines the kind of a path. The key of an archive depends on the file's size and time, so that a changed
// file is unpacked again.
func pathSource(path string) (imageSource, error) {
	path = filepath.Clean(path)
	fi, err := os.Stat(path)
	if err != nil {
		return imageSource{}, fmt.Errorf("image %s: %w", path, err)
	}
	if !fi.IsDir() {
		stamp := fmt.Sprintf("%s\x00%d\x00%d", path, fi.Size(), fi.ModTime().UnixNano())
		return imageSource{text: path, kind: kindArchive, key: imageKey(path, stamp)}, nil
	}
	if layout, err := os.Stat(filepath.Join(path, "oci-layout")); err == nil {
		stamp := fmt.Sprintf("%s\x00%d", path, layout.ModTime().UnixNano())
		return imageSource{text: path, kind: kindLayout, key: imageKey(path, stamp)}, nil
	}
	return imageSource{text: path, kind: kindDirectory}, nil
}

var notInKey = regexp.MustCompile(`[^a-z0-9]+`)

// imageKey returns a recognizable and unique directory name for an image.
func imageKey(text, stamp string) string {
	sum := sha256.Sum256([]byte(stamp))
	slug := strings.Trim(notInKey.ReplaceAllString(strings.ToLower(text), "-"), "-")
	if len(slug) > 48 {
		slug = slug[len(slug)-48:]
	}
	return strings.TrimLeft(slug, "-") + "-" + hex.EncodeToString(sum[:6])
}

// open returns an image that is ready, or an error.
func (s Store) open(src imageSource) (Image, error) {
	if src.kind == kindDirectory {
		if !looksLikeRoot(src.text) {
			return Image{}, fmt.Errorf("image %s is not a root file system", src.text)
		}
		return Image{Source: src.text, Rootfs: src.text}, nil
	}
	dir := filepath.Join(s.Dir, src.key)
	data, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil {
		return Image{}, fmt.Errorf("image %s does not exist yet: it must be built or pulled before a box can use it", src.text)
	}
	var img Image
	if err := json.Unmarshal(data, &img); err != nil {
		return Image{}, fmt.Errorf("image %s: %s is damaged: remove %s", src.text, "image.json", dir)
	}
	img.Rootfs, img.Key = filepath.Join(dir, "rootfs"), src.key
	return img, nil
}

// looksLikeRoot reports whether a directory is a root file system.
func looksLikeRoot(dir string) bool {
	for _, name := range []string{"usr", "bin"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.IsDir() {
			return true
		}
	}
	return false
}

// syncTree writes the file system of dir to disk, so that after a power failure a renamed directory has complete files.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// Check returns why the image cannot be used, as far as that can be found out quickly. An image that exists, or whose file
// exists, can be used. For a reference, it asks the registry whether it has the image.
func (s Store) Check(ctx context.Context, imageName string) error {
	src, err := s.source(imageName)
	if err != nil {
		return err
	}
	_, err = s.open(src)
	switch {
	case err == nil || src.kind == kindArchive || src.kind == kindLayout:
		return nil
	case src.kind == kindDebian:
		if _, err := exec.LookPath("mmdebstrap"); err != nil {
			return errNoMmdebstrap
		}
		return nil
	case src.kind == kindReference:
		return s.askRegistry(ctx, src.text)
	}
	return err
}

func (s Store) askRegistry(ctx context.Context, text string) error {
	ref, err := name.ParseReference(text)
	if err != nil {
		return err
	}
	puller, err := s.newPuller()
	if err != nil {
		return err
	}
	asked, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	_, err = puller.Head(asked, ref)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case asked.Err() != nil:
		err = errors.Join(context.Cause(asked), err)
	}
	return explainPull(ref, err)
}

// imageUmask preserves the modes that the build of an image sets. The service itself runs with a stricter umask.
const imageUmask = 0o022

// underImageUmask calls build on a thread with the umask for images, which programs started from it inherit. The umask of
// the process does not change.
func underImageUmask(build func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("a umask of its own: %w", err)
			return
		}
		unix.Umask(imageUmask)
		done <- build()
	}()
	return <-done
}
