package h1

// connectionSchemes are schemes that authenticate a connection instead of each request: further requests on the connection
// carry no credentials and act for the user (RFC 4559, 6; MS-NTHT; MS-WSMV for CredSSP).
var connectionSchemes = []string{"ntlm", "negotiate", "kerberos", "nego2", "credssp"}

// LogsIn reports whether fields of a request or a response are part of the login of a connection, which from then on belongs
// to one client.
func LogsIn(fields []Field) bool {
	for i := range fields {
		if f := &fields[i]; IsLogin(f.Name, f.Value) {
			return true
		}
	}
	return false
}

// IsLogin is [LogsIn] for one field. It compares the length of the name first, as nearly all names have another length.
func IsLogin[S []byte | string](name, value S) bool {
	switch len(name) {
	case len("authorization"):
		return isWord(name, "authorization") && listsScheme(value)
	case len("www-authenticate"):
		return isWord(name, "www-authenticate") && listsScheme(value)
	case len("proxy-authorization"):
		return isWord(name, "proxy-authorization") && listsScheme(value)
	case len("proxy-authenticate"):
		return isWord(name, "proxy-authenticate") && listsScheme(value)
	case len("persistent-auth"):
		return isWord(name, "persistent-auth")
	}
	return false
}

// listsScheme reports whether one of the challenges or credentials in a list has a scheme for connections. Commas also
// separate parameters, and a quoted parameter that looks like such a scheme counts: its only cost is a connection.
func listsScheme[S []byte | string](list S) bool {
	first := true // of an element
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == ',':
			first = true
		case c == ' ' || c == '\t':
		case first:
			end := i
			for end < len(list) && list[end] != ',' && list[end] != ' ' && list[end] != '\t' {
				end++
			}
			if isConnectionScheme(list[i:end]) {
				return true
			}
			first, i = false, end-1
		}
	}
	return false
}

// isConnectionScheme compares the length first, as IsLogin does.
func isConnectionScheme[S []byte | string](word S) bool {
	for _, scheme := range connectionSchemes {
		if len(word) == len(scheme) && isWord(word, scheme) {
			return true
		}
	}
	return false
}

// isWord is [EqualFold] for strings and byte slices.
func isWord[S []byte | string](s S, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != lower[i] && (c < 'A' || c > 'Z' || c+('a'-'A') != lower[i]) {
			return false
		}
	}
	return true
}
