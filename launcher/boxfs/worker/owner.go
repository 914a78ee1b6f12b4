package worker

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

const (
	// idRange is the number of user IDs of a box. Its first ID on the host is a multiple of it.
	idRange = 1 << 16
	// overflowID is the ID of users outside the range, as in the box.
	overflowID = 65534
	// maxDatabase is how much of a user database is read, in bytes.
	maxDatabase = 256 << 10
	// maxOwner is the longest name of a user, in bytes, as in useradd(8).
	maxOwner = 32
)

// owners names the users and groups of the box, as /etc/passwd and /etc/group do when they are first needed. The box writes these files.
// The zero value is ready to use, for one request.
type owners struct {
	users, groups map[uint32]string
}

// describe adds the owner and the group of a file.
func (o *owners) describe(info *Info, fi fs.FileInfo) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	info.Inode, info.UID, info.GID = st.Ino, inside(st.Uid), inside(st.Gid)
	if o.users == nil {
		o.users, o.groups = readNames("/etc/passwd"), readNames("/etc/group")
	}
	info.Owner, info.Group = nameIn(o.users, info.UID), nameIn(o.groups, info.GID)
}

// inside converts an ID of the host to the box's.
func inside(host uint32) uint32 {
	if first := uint32(os.Getuid()) &^ (idRange - 1); host >= first && host-first < idRange {
		return host - first
	}
	return overflowID
}

func nameIn(names map[uint32]string, id uint32) string {
	if name := names[id]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// readNames reads the names of a user database by their IDs, never nil. Of several names of an ID, the first is valid.
func readNames(path string) map[uint32]string {
	f, _, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return map[uint32]string{}
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, maxDatabase)) // what was read before an error is valid
	return parseNames(data)
}

// parseNames reads lines of passwd(5) or group(5). It skips lines that are neither.
func parseNames(data []byte) map[uint32]string {
	names := map[uint32]string{}
	for line := range bytes.Lines(data) {
		fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 4)
		if len(fields) < 3 || !isOwner(fields[0]) {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := names[uint32(id)]; err == nil && !known {
			names[uint32(id)] = fields[0]
		}
	}
	return names
}

// isOwner reports whether a text can be shown as the name of a user. Digits alone would look like an ID.
func isOwner(name string) bool {
	shown := func(r rune) bool { return unicode.IsGraphic(r) && r != ' ' }
	return name != "" && len(name) <= maxOwner && utf8.ValidString(name) &&
		strings.IndexFunc(name, func(r rune) bool { return !shown(r) }) < 0 &&
		strings.IndexFunc(name, func(r rune) bool { return r < '0' || r > '9' }) >= 0
}
