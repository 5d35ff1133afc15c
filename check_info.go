package redlock

import (
	"strconv"
	"strings"
)

// info is what INFO has told, by field. A nil one has told nothing.
type info map[string]string

// parseInfo takes in the text of one or more sections. What is no field is left
// out, and of a field that comes twice the first counts.
func (i info) parse(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		field, value, ok := strings.Cut(line, ":")
		if !ok || field == "" || strings.HasPrefix(field, "#") {
			continue
		}
		if _, twice := i[field]; !twice {
			i[field] = value
		}
	}
}

// number is a field that counts something; false if it is not there, is no number
// or is negative.
func (i info) number(field string) (int64, bool) {
	n, err := strconv.ParseInt(i[field], 10, 64)
	return n, err == nil && n >= 0
}

// shows is a field as it was read, for evidence.
func (i info) shows(field string) string { return field + ":" + i[field] }

// version is the version of Redis whose commands the server has: major · 1000 +
// minor, 0 if it is not told. Valkey tells the one that it descends from.
func (i info) version() int { return versionOf(i["redis_version"]) }

func versionOf(text string) int {
	major, rest, _ := strings.Cut(text, ".")
	minor, _, _ := strings.Cut(rest, ".")
	m, err := strconv.ParseUint(major, 10, 16)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(minor, 10, 16)
	return int(m)*1000 + int(min(n, 999))
}

// compares tells whether the server has native commands that compare, with which locks
// are extended and released where scripts are denied.
func (i info) compares() bool {
	if valkey := i["valkey_version"]; valkey != "" {
		return versionOf(valkey) >= 9000
	}
	return i.version() >= 8004
}

// product names the server and its version for people.
func (i info) product() string {
	if v := i["valkey_version"]; v != "" {
		return "valkey " + v
	}
	return i["redis_version"]
}

// clusterIDs are the ids of all servers of a cluster, as CLUSTER NODES lists them,
// one on a line.
func clusterIDs(text string) (ids []string) {
	for line := range strings.Lines(text) {
		if id, _, ok := strings.Cut(line, " "); ok && id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}
