/* Garbage collection and removal of old versions beside a writer, a tag, a shallow clone, and a deletion's retention.
 *
 * One table with versions 1 and 2; a writer writes a data file and commits version 3; somebody tags or clones version 1;
 * the collector removes old versions and files that no version refers to. Time is an age: `old` is older than
 * gc_safety_days and than every unfinished write. Promised:
 *   - a version that is committed, tagged or cloned can be read: its manifest and its data file are there;
 *   - a writer that was too slow (its staged manifest was collected) is refused, and commits nothing that is broken.
 */
#define FILES 4
bool data[FILES];        /* data files: each of versions 1, 2, 3 has one of its own */
bool manifest[FILES];    /* final manifests */
bool staged;             /* the writer's manifest, before its commit */
bool recorded;           /* the catalog has version 3 */
bool is_old;             /* the writer's files are older than gc_safety_days */
bool is_working;         /* the writer holds a transaction or an upload, which the collector takes into account */
bool tag, tagged;        /* version 1 has a tag; whoever made it was told so */
bool cloned;             /* a clone in the catalog refers to version 1's data file */
bool removing;           /* the turn is that of a removal */
bool refused, acknowledged, has_stopped;
bool locked;             /* the turn of old versions, which clones and tags take, too */

#define may_stop if :: true :: goto stopped fi
#define readable(v) (!manifest[v] || data[v])

/* write_rows (storage/writing.py), commit_append (storage/writing.py): files first, then the staged manifest */
inline write_files() { data[3] = true; staged = true }

/* record_versions (tables/commits/recording.py): files are checked before the record, which the collector respects */
inline record() {
    atomic { if :: staged && data[3] -> recorded = true :: else -> refused = true fi }
}

/* finalize (tables/commits/finalizing.py) */
inline finalize() {
    atomic { if :: recorded && !manifest[3] -> manifest[3] = true; staged = false :: else fi }
}

proctype Writer() {
    atomic { if :: true -> is_working = true :: true fi };
    write_files();
    may_stop;
    record();
    may_stop;
    if :: !refused -> finalize(); acknowledged = true :: else fi;
stopped:
    atomic { is_working = false; has_stopped = true }
}

/* confirm_reference (tables/versions/removal_turns.py): once no removal is under way, the version is looked for again */
inline confirm_reference() {
#ifndef BROKEN_TAG_DOES_NOT_WAIT
    !removing;
#endif
#ifndef BROKEN_TAG_IS_NOT_CONFIRMED
    found = manifest[1]
#endif
}

/* create_table_tag (tables/versions/tags.py): Lance looks for the version and then writes the tag, which is confirmed */
proctype Tagger() {
    bool found;
    found = manifest[1];
    if
    :: found ->
        tag = true;
        may_stop;
        confirm_reference();
        if :: found -> tagged = true :: else -> tag = false fi
    :: else
    fi;
stopped:
    skip
}

/* clone_table (tables/versions/clone.py): in the turn, from the look at the version to the record in the catalog */
proctype Cloner() {
    bool found;
    atomic { !locked -> locked = true };
    found = manifest[1] && data[1];
    if :: found -> cloned = true :: else fi;
    locked = false
}

/* No function of ours: the writer hangs for longer than gc_safety_days with its manifest staged. One that hangs between
 * its first file and its manifest for so long has to be in a transaction or an upload (docs/upkeep.md). */
proctype Time() { staged || has_stopped -> is_old = true }

/* stale_staged (tables/upkeep/garbage.py): staged manifests that are old and of no version that is recorded */
inline remove_staged() {
    listed = staged && is_old && !is_working;
    atomic { if :: listed && !recorded -> staged = false :: else fi }
}

/* _remove_old_versions (tables/upkeep/garbage.py), hold_removal_turn (tables/versions/removal_turns.py): not those with
 * tags, or that clones refer to; looked at in the turn */
inline remove_old() {
#ifndef BROKEN_REMOVAL_WITHOUT_TURN
    atomic { !locked -> locked = true; removing = true };
#endif
    keep = tag || cloned;
    if :: !keep -> atomic { manifest[1] = false; data[1] = false } :: else fi;
#ifndef BROKEN_REMOVAL_WITHOUT_TURN
    atomic { locked = false; removing = false }
#else
    skip
#endif
}

/* referenced_units (tables/upkeep/references.py): what versions refer to is read once staged manifests are removed */
inline read_references() { finalize(); referenced = manifest[3] }

/* collect (tables/upkeep/garbage.py): the order is the point: list, remove staged manifests, finalize, read, remove */
proctype Collector() {
    bool listed, listed_data, keep, referenced;
    remove_old();
    may_stop;
    listed_data = data[3] && is_old && !is_working;
#ifdef BROKEN_REFERENCES_BEFORE_STAGED
    read_references();
    remove_staged();
#else
    remove_staged();
    may_stop;
    read_references();
#endif
    may_stop;
#ifdef BROKEN_YOUNG_FILES
    if :: data[3] && !referenced -> data[3] = false :: else fi;
#else
    if :: listed_data && !referenced -> data[3] = false :: else fi;
#endif
stopped:
    skip
}

init {
    atomic {
        data[1] = true; data[2] = true; manifest[1] = true; manifest[2] = true;
        run Writer(); run Tagger(); run Cloner(); run Time(); run Collector()
    }
}

ltl promised { [] (readable(1) && readable(2) && readable(3) && (!tagged || manifest[1]) && (!cloned || data[1])
                   && (!acknowledged || manifest[3])) }
