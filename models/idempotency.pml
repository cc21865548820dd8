/* A write with an idempotency key, which its client sends again: leases, take-overs, unknown outcomes, replays.
 *
 * Two servers get the request and its repeat, and a third one another repeat when they have ended. A lease may expire
 * at any moment, as that of a process that hangs, which goes on later. Promised:
 *   - the write is made at most once, and before any client is told that it was;
 *   - a repeat that comes in the end is answered, and then the write was made once.
 */
#define NOBODY 0
#define PENDING 0
#define ANSWERED 1

bool exists;          /* the record of the key in the catalog */
byte holder, attempt; /* who runs it, and in which try */
bool is_leased;
bool is_committed;    /* the record names the commit that fulfils it */
bool status;          /* PENDING or ANSWERED: the response is stored */
byte effects;         /* how often the write was made */
byte answers;
byte ended;

mtype = { STOP, BEGIN, RECOVER, COMMIT, COMMIT_CUT, COMMIT_AWAY, CUT, REFUSE, FINISH, RELEASE, DISCARD, ANSWER, EXPIRE };
#define record (1 + 2 * (holder + 4 * (attempt + 8 * (is_leased + 2 * (is_committed + 2 * status)))))
#define abstract ((exists -> record : 0) + 1024 * (effects + 4 * answers))
#include "steps.h"

#define holds (exists && holder == me && attempt == tried && status == PENDING)

/* begin_request (store/idempotency.py): a new key is claimed; one whose lease has expired is taken over */
inline begin_request() {
    atomic {
        if
        :: !exists -> exists = true; holder = me; attempt = 1; tried = 1; is_leased = true; status = PENDING;
            is_committed = false; claimed = true
        :: exists && status == PENDING && !is_leased -> holder = me; attempt++; tried = attempt; is_leased = true;
            claimed = true
        :: else -> claimed = false; replayed = (status == ANSWERED)
        fi;
        seen = effects;
        step(_pid, BEGIN, (claimed -> 1 : (replayed -> 2 : 0)))
    }
}

/* What fails on a version that another commit has taken is tried again on the next one (ConflictRetry). */
inline seen_by(action) { is_overtaken = (effects > seen); seen = effects; step(_pid, action, committed) }

/* mark_requests_committed (store/idempotency.py): in the transaction that records the version, and only under the lease */
inline record_commit(action) {
    atomic {
#ifdef BROKEN_COMMIT_WITHOUT_LEASE
        committed = true;
#else
        committed = holds;
#endif
        if
        :: committed -> effects++; is_committed = true
        :: else
        fi;
        seen_by(action);
        assert(effects <= 1)
    }
}

/* recover_response (tables/commits/recovery.py): a try that is not the first looks whether one before has committed */
inline recover() {
#ifdef BROKEN_NO_RECOVERY
    atomic { committed = false; if :: tried > 1 -> step(_pid, RECOVER, committed) :: else fi }
#else
    atomic {
        committed = (tried > 1 && is_committed);
        if :: tried > 1 -> seen = effects; step(_pid, RECOVER, committed) :: else fi
    }
#endif
}

/* finish_request (store/idempotency.py): the response is stored for repeats, under the lease */
inline finish_request() {
    atomic {
        held = holds;
        if :: held -> status = ANSWERED; is_leased = false :: else fi;
        step(_pid, FINISH, held)
    }
}

/* release_request (store/idempotency.py): a failure that may have committed leaves the record to the next try */
inline release_request() {
#ifdef BROKEN_UNKNOWN_IS_DISCARDED
    atomic { if :: holds -> exists = false; is_leased = false :: else fi; step(_pid, RELEASE, 0) }
#else
    atomic { if :: holds -> is_leased = false :: else fi; step(_pid, RELEASE, 0) }
#endif
}

/* discard_or_release_request (store/idempotency.py): a refusal is forgotten, unless something was committed all the same */
inline discard_request() {
    atomic {
        if
        :: holds && !is_committed -> exists = false; is_leased = false
        :: holds && is_committed -> is_leased = false
        :: else
        fi;
        step(_pid, DISCARD, 0)
    }
}

inline answer() { atomic { assert(effects == 1); answers++; answered = true; step(_pid, ANSWER, 0) } }

/* _attempt (api/idempotency/requests.py): one server with one request */
inline attempt_request() {
    begin_request();
    may_stop;
    if
    :: claimed ->
        recover();
        if
        :: !committed ->
            may_stop;
#ifdef BROKEN_ANSWERED_EARLY
            finish_request();
            may_stop;
#endif
            do
            :: true ->
                unknown = false; refused = false;
                if
                :: record_commit(COMMIT); refused = !committed /* without its lease it is refused */
                :: may_fail -> record_commit(COMMIT_CUT); unknown = !committed /* its answer is lost, and looked up */
                :: may_fail -> record_commit(COMMIT_AWAY); unknown = true; break /* the catalog stays away */
                :: may_fail -> atomic { unknown = true; seen_by(CUT) }
                :: may_fail -> atomic { refused = true; seen_by(REFUSE) }
                fi;
                if
                :: !committed && is_overtaken -> may_stop
                :: else -> break
                fi
            od
        :: else
        fi;
        may_stop;
        if
        :: unknown || (refused && tried > 1) -> release_request()
        :: !unknown && refused && tried == 1 -> discard_request()
        :: else -> finish_request(); may_stop; answer()
        fi
    :: !claimed && replayed -> answer()
    :: else
    fi
}

proctype Server(byte me) {
    byte tried, seen;
    bool claimed, replayed, committed, unknown, refused, answered, may_fail, held, is_overtaken;
    may_fail = true;
    attempt_request();
stopped:
    ended++
}

/* No function of ours: time passes; a process that does not renew its lease loses it, whatever it still does. */
proctype Time() {
    byte times;
    do
    :: atomic { times < 2 && is_leased -> is_leased = false; times++; step(_pid, EXPIRE, 1) }
#ifdef SELDOM
    :: times > 0 -> break
#else
    :: break
#endif
    od
}

/* The repeat that comes last; all leases have expired. */
proctype Later(byte me) {
    byte tried, seen;
    bool claimed, replayed, committed, unknown, refused, answered, may_fail, held, is_overtaken;
    ended == 2;
    atomic { is_leased = false; step(_pid, EXPIRE, 1) };
    attempt_request();
    if
    :: !holds || !is_leased -> assert(answered)
    :: else
    fi;
stopped:
    skip
}

init { atomic { run Server(1); run Server(2); run Time(); run Later(3) } }
