/* Garbage collection and removal of old versions beside a writer, a tag and a shallow clone.
 *
 * One table with versions 1 and 2; a writer writes a data file and commits version 3; somebody tags or clones version 1;
 * the collector removes old versions and files that no version refers to. Time is an age: `old` is older than
 * gc_safety_days and than every unfinished write. Each may be stopped before its next step. Promised:
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
bool acknowledged;       /* the writer was told that version 3 is committed */
byte turn;               /* who has the turn of old versions, which removals and clones take */

#define WRITER 1
#define COLLECTOR 5
bool ended[COLLECTOR + 1];

mtype = {
    STOP, WORK, BEGIN, WRITE, STAGE, RECORD, PUT, ACKNOWLEDGE, LOOK, TAG, CONFIRM, CLAIM, CLONE, END_TURN, FINALIZE,
    REMOVE_OLD, LIST, FIND_STAGED, REMOVE, AGE, RELEASE, EXPIRE
};
#define files (data[1] + 2 * (data[3] + 2 * (manifest[1] + 2 * (manifest[3] + 2 * staged))))
#define told (recorded + 2 * (is_working + 2 * (tag + 2 * (tagged + 2 * (cloned + 2 * acknowledged)))))
#define abstract (files + 32 * (told + 64 * turn))
#include "steps.h"

#define readable(v) (!manifest[v] || data[v])
inline check_promised() {
    assert(readable(1) && readable(2) && readable(3) && (!tagged || manifest[1]) && (!cloned || data[1])
           && (!acknowledged || manifest[3]))
}

/* finalize (tables/commits/finalizing.py) */
inline finalize() {
    if :: recorded && !manifest[3] -> manifest[3] = true; staged = false :: else fi
}

/* hold_turn (tables/turns.py): waits until nobody has it */
inline end_turn() { atomic { if :: turn == _pid -> turn = 0 :: else fi; step(_pid, END_TURN, 0) } }

/* commit_staged (tables/commits/commit.py), record_versions (tables/commits/recording.py): files are checked, then the
 * version is recorded, which the collector respects. A server that hangs between the two is not looked at here. */
inline record() {
    atomic {
        if :: staged && data[3] -> recorded = true :: else -> refused = true fi;
        step(_pid, RECORD, refused)
    }
}

/* commit_append (storage/writing.py): files first, then the staged manifest, then the record */
proctype Writer() {
    bool refused;
    if
    :: atomic { is_working = true; step(_pid, WORK, 0) }
    :: atomic { step(_pid, BEGIN, 0) }
    fi;
    atomic { data[3] = true; step(_pid, WRITE, 0) };
    may_stop;
    atomic { staged = true; step(_pid, STAGE, 0) };
    may_stop;
    record();
    if
    :: !refused ->
        may_stop;
        atomic { finalize(); step(_pid, PUT, 0); check_promised() };
        may_stop;
        atomic { acknowledged = true; step(_pid, ACKNOWLEDGE, 0); check_promised() }
    :: else
    fi;
stopped:
    ended[_pid] = true
}

/* confirm_reference (tables/versions/removal_turns.py): once no removal is under way, the version is looked for again */
inline confirm_reference() {
    atomic {
#ifndef BROKEN_TAG_DOES_NOT_WAIT
        turn != COLLECTOR;
#endif
#ifndef BROKEN_TAG_IS_NOT_CONFIRMED
        found = manifest[1];
        if :: !found -> tag = false :: else fi;
#endif
        step(_pid, CONFIRM, 1)
    }
}

/* create_table_tag (tables/versions/tags.py): Lance looks for the version and then writes the tag, which is confirmed */
proctype Tagger() {
    bool found;
    atomic { finalize(); step(_pid, BEGIN, 0); check_promised() };
    atomic { found = manifest[1]; step(_pid, LOOK, found) };
    if
    :: found ->
        may_stop;
        atomic { tag = true; step(_pid, TAG, 0) };
        may_stop;
        confirm_reference();
        if
        :: found -> may_stop; atomic { tagged = true; step(_pid, ACKNOWLEDGE, 0); check_promised() }
        :: else
        fi
    :: else
    fi;
stopped:
    ended[_pid] = true
}

/* clone_table (tables/versions/clone.py): in the turn, from the look at the version to the record in the catalog */
proctype Cloner() {
    bool found;
    atomic { turn == 0 -> turn = _pid; found = manifest[1] && data[1]; step(_pid, CLAIM, 1) };
    if
    :: found -> may_stop; atomic { cloned = true; step(_pid, CLONE, 0); check_promised() }
    :: else
    fi;
    may_stop;
    end_turn();
stopped:
    ended[_pid] = true
}

/* No function of ours: the writer hangs for longer than gc_safety_days with its manifest staged, what it had begun is
 * given up, the leases of those end who were stopped. One that hangs between its first file and its manifest for so long
 * has to be in a transaction or an upload (docs/upkeep.md). */
proctype Time() {
end:
    do
    :: atomic { !is_old && (staged || ended[WRITER]) -> is_old = true; step(_pid, AGE, 1) }
    :: atomic { is_working && ended[WRITER] -> is_working = false; step(_pid, RELEASE, 1) }
    :: atomic { turn != 0 && ended[turn] -> turn = 0; step(_pid, EXPIRE, 1) }
    od
}

/* _remove_old_versions (tables/upkeep/garbage.py), hold_removal_turn (tables/versions/removal_turns.py): not those with
 * tags, or that clones refer to; looked at in the turn */
inline remove_old() {
#ifdef BROKEN_REMOVAL_WITHOUT_TURN
    atomic { keep = (tag || cloned); step(_pid, CLAIM, 1) };
#else
    atomic { turn == 0 -> turn = _pid; keep = (tag || cloned); step(_pid, CLAIM, 1) };
#endif
    if
    :: !keep ->
        may_stop;
        atomic { manifest[1] = false; data[1] = false; step(_pid, REMOVE_OLD, 0); check_promised() }
    :: else
    fi;
    may_stop;
    end_turn()
}

/* stale_staged (tables/upkeep/garbage.py): staged manifests that are old and of no version that is recorded, and pending */
inline remove_staged() {
    atomic { listed = listed && !(recorded && !manifest[3]); step(_pid, FIND_STAGED, listed) };
    may_stop;
    atomic { if :: listed -> staged = false :: else fi; step(_pid, REMOVE, listed) }
}

/* referenced_units (tables/upkeep/references.py): what versions refer to is read once staged manifests are removed */
inline read_references() {
    atomic { finalize(); referenced = manifest[3]; step(_pid, FINALIZE, 0); check_promised() }
}

/* collect (tables/upkeep/garbage.py): the order is the point: list, remove staged manifests, finalize, read, remove */
proctype Collector() {
    bool listed, listed_data, keep, referenced, spares;
    may_stop;
    atomic {
        finalize();
        spares = is_working; /* cutoff_of (tables/upkeep/garbage.py) */
        keep = !manifest[1] || tag || cloned;
        step(_pid, FINALIZE, 0);
        check_promised()
    };
    if :: !keep -> remove_old() :: else fi;
    may_stop;
    atomic {
        listed_data = data[3] && is_old && !spares;
        listed = staged && is_old && !spares;
        step(_pid, LIST, 0)
    };
    may_stop;
#ifdef BROKEN_REFERENCES_BEFORE_STAGED
    read_references();
    may_stop;
    remove_staged();
#else
    remove_staged();
    may_stop;
    read_references();
#endif
    may_stop;
    atomic {
#ifdef BROKEN_YOUNG_FILES
        listed_data = data[3];
#endif
        listed_data = listed_data && !referenced;
        if :: listed_data -> data[3] = false :: else fi;
        step(_pid, REMOVE, listed_data);
        check_promised()
    };
stopped:
    ended[_pid] = true
}

init {
    atomic {
        data[1] = true; data[2] = true; manifest[1] = true; manifest[2] = true;
        run Writer(); run Tagger(); run Cloner(); run Time(); run Collector()
    }
}
