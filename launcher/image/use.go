package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

// ErrInUse means that boxes or snapshots need the image.
var ErrInUse = errors.New("the image is in use")

// ErrUnknown means that the image directory does not contain the image.
var ErrUnknown = errors.New("no such image")

// A holder is the directory of a box or a snapshot that needs an image for as long as it exists. The image directory has
// one file per holder, which is independent of processes; several gateways may share the directory.

func (s Store) holders(key string) string { return filepath.Join(s.Dir, "."+key+".holders") }

// Use returns the image, and protects it from removal while the directory holder exists.
func (s Store) Use(name, holder string) (Image, error) {
	src, err := s.source(name)
	if err != nil {
		return Image{}, err
	}
	if src.kind == kindDirectory {
		return s.open(src)
	}
	unlock, err := s.lockShared(src.key)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	img, err := s.open(src)
	if err != nil {
		return Image{}, err
	}
	return img, s.writeHolder(src.key, holder)
}

// Hold does the same for an image that is already in use.
func (s Store) Hold(img Image, holder string) error {
	if img.Key == "" {
		return nil
	}
	unlock, err := s.lockShared(img.Key)
	if err != nil {
		return err
	}
	defer unlock()
	return s.writeHolder(img.Key, holder)
}

// At returns the image with that key, even if its name now refers to another image. Without a key, it returns the one at
// rootfs.
func (s Store) At(key, rootfs string) (Image, error) {
	if key == "" {
		return s.open(imageSource{text: rootfs, kind: kindDirectory})
	}
	return s.open(imageSource{text: key, kind: kindReference, key: key})
}

func (s Store) writeHolder(key, holder string) error {
	if err := os.MkdirAll(s.holders(key), 0o700); err != nil {
		return err
	}
	text := holder
	if id, ok := fileSystemAt(holder); ok {
		text += holderSeparator + id
	}
	return os.WriteFile(filepath.Join(s.holders(key), holderFile(holder)), []byte(text), 0o600)
}

// holderSeparator separates the path of a holder from the ID of its file system.
const holderSeparator = "\x00"

// exists reports whether a holder exists or may exist: if its directory is missing, its file system may not be mounted. So
// it is gone only if the path is on the same file system as before.
func exists(holder, on string) (bool, error) {
	if _, err := os.Lstat(holder); !errors.Is(err, fs.ErrNotExist) {
		return err == nil, err
	}
	if on == "" { // recorded by an older version
		_, err := os.Lstat(filepath.Dir(holder))
		return errors.Is(err, fs.ErrNotExist), nil
	}
	at, ok := fileSystemAt(holder)
	return !ok || at != on, nil
}

// fileSystemAt identifies the file system of a path, or of its closest existing parent.
func fileSystemAt(path string) (id string, ok bool) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			return fmt.Sprintf("%x-%08x%08x", st.Type, uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1])), true
		}
		if !errors.Is(err, fs.ErrNotExist) || path == "/" {
			return "", false
		}
		path = filepath.Dir(path)
	}
}

func holderFile(holder string) string {
	sum := sha256.Sum256([]byte(holder))
	return hex.EncodeToString(sum[:8])
}

// Release removes a holder from all images.
func (s Store) Release(holder string) {
	held, _ := filepath.Glob(filepath.Join(s.Dir, ".*.holders", holderFile(holder))) // the pattern is valid
	for _, file := range held {
		_ = os.Remove(file) // a remaining file is recognized as stale
	}
}

// lockShared protects an image from being removed or replaced until unlock is called.
func (s Store) lockShared(key string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.Dir, "."+key+".lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s does not exist yet: it must be built or pulled before a box can use it", key)
	}
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// liveHolders returns the holders of an image that exist or may exist, and removes the files of the others.
func (s Store) liveHolders(key string) ([]string, error) {
	entries, err := os.ReadDir(s.holders(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var users []string
	for _, e := range entries {
		file := filepath.Join(s.holders(key), e.Name())
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		holder, on, _ := strings.Cut(string(text), holderSeparator)
		there, err := exists(holder, on)
		switch {
		case err != nil:
			return nil, err
		case there:
			users = append(users, holder)
		case os.Remove(file) != nil:
			// removed another time
		}
	}
	return users, nil
}

// Stored is an image in the image directory.
type Stored struct {
	Key     string
	Source  string
	Bytes   int64 // on disk
	Made    time.Time
	Holders []string // directories of boxes and snapshots that use it
}

// List returns the images in the image directory, by key.
func (s Store) List() ([]Stored, error) {
	found, err := filepath.Glob(filepath.Join(s.Dir, "*", "image.json"))
	if err != nil {
		return nil, err
	}
	var list []Stored
	for _, file := range found {
		key := filepath.Base(filepath.Dir(file))
		if strings.HasPrefix(key, ".") {
			continue // incomplete
		}
		data, err := os.ReadFile(file)
		if err != nil {
			continue // removed during the call
		}
		var img Image
		_ = json.Unmarshal(data, &img) // a damaged image is listed, so that it can be removed
		users, err := s.liveHolders(key)
		if err != nil {
			return nil, err
		}
		made := time.Time{}
		if fi, err := os.Stat(file); err == nil {
			made = fi.ModTime()
		}
		list = append(list, Stored{Key: key, Source: img.Source, Bytes: img.Bytes, Made: made, Holders: users})
	}
	return list, nil
}

// Remove removes an image, or the layers of an interrupted pull. name is its key, source or name. It returns ErrInUse for
// an image in use, and ErrUnknown for a missing one.
func (s Store) Remove(ctx context.Context, name string) error {
	key, err := s.keyOf(name)
	if err != nil {
		return err
	}
	unlock, err := files.Lock(ctx, filepath.Join(s.Dir, "."+key+".lock"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	users, err := s.liveHolders(key)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%s: %w by %s", key, ErrInUse, strings.Join(users, ", "))
	}
	gone := filepath.Join(s.Dir, "."+key+".building") // the next build removes remains
	if err := files.RemoveTree(ctx, gone); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(s.Dir, key), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, dir := range []string{gone, s.blobs(key), s.holders(key)} {
		if err := files.RemoveTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// keyOf returns the key of an existing image.
func (s Store) keyOf(name string) (string, error) {
	list, err := s.List()
	if err != nil {
		return "", err
	}
	key := name
	if src, err := s.source(name); err == nil && src.key != "" {
		key = src.key
	}
	for _, candidate := range []string{name, key} {
		if slices.ContainsFunc(list, func(i Stored) bool { return i.Key == candidate }) {
			return candidate, nil
		}
	}
	if _, err := os.Stat(s.blobs(key)); err == nil && !strings.ContainsRune(key, '/') {
		return key, nil
	}
	return "", fmt.Errorf("%q: %w: gateway image list shows the existing ones", name, ErrUnknown)
}
